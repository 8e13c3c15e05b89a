"""Fits windows into the part of the budget that is left for them: how many are held whole, in how many slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError

MAX_SLICES = 8
# Memory kept for reuse: this much, but no more than is in use, or this part of it.
_REUSED_BYTES, _REUSED_PART = 192 * 2**20, 8
# Runs of up to this many times the usual size are placed whole, larger ones in portions of the usual size.
WHOLE_RUNS = 2
# Margin in suggested sizes, for rows that are larger than those estimated or measured so far.
SUGGESTED_SLACK = 1.1


@dataclass(frozen=True)
class RowSizes:
    """Measured row sizes, in bytes."""

    row_bytes: float = 0.0  # per delivered row, in runs and batches
    stored_row_bytes: float = 0.0  # per stored row, in the blocks that tasks hold
    excess_bytes: float = 0.0  # per stored row, what windows hold beyond the estimate; 0 or more
    growth: float = 1.0  # measured size of blocks divided by the estimate; 1 or more


@dataclass(frozen=True)
class RowOverhead:
    """Memory beside windows that scales with the row size: runs, batches and the blocks in tasks.

    The minimum sizes do not scale.

    >>> overhead = RowOverhead(runs=4, run_rows=1000, batch_rows=10, min_run_bytes=800)
    >>> [overhead.runs_bytes(row_bytes) // 4 for row_bytes in (0, 1, 100, 1000)]
    [800, 1000, 1000, 10000]
    """

    runs: int  # runs and batches that are held at the same time, over all shards
    run_rows: int  # of a run, which is placed in portions if it is large
    batch_rows: int  # of a batch, which is not
    min_run_bytes: int
    tasks: int = 0  # maximum number of concurrent tasks; each holds a block
    block_rows: int = 0  # stored rows of the largest block
    min_block_bytes: int = 0
    row_bytes: int = 0  # estimated, as is the next
    block_bytes: int = 0  # of the blocks that a task holds

    def runs_bytes(self, row_bytes: float) -> int:
        """Bytes of all runs and batches at ``row_bytes`` per row."""
        run_bytes = max(float(self.min_run_bytes), self.batch_rows * row_bytes)
        if self.run_rows * row_bytes <= WHOLE_RUNS * self.min_run_bytes:
            run_bytes = max(run_bytes, self.run_rows * row_bytes)
        return self.runs * ceil(run_bytes)

    def blocks_bytes(self, stored_row_bytes: float, tasks: int) -> int:
        """Bytes of the blocks in ``tasks`` running tasks at ``stored_row_bytes`` per stored row."""
        return tasks * max(self.min_block_bytes, ceil(self.block_rows * stored_row_bytes))


@dataclass(frozen=True)
class Budget:
    """The memory of a run, by purpose. Bytes of windows count every copy of a window.

    ``windows_bytes`` is what all windows held at the same time take as estimated beforehand, and
    ``windows_limit_bytes`` the limit that the scheduler enforces. It is higher where the former is an
    estimate, or where a window can be larger in another epoch, and ``limit_bytes`` allows it.
    """

    window_bytes: int  # the largest window
    windows_bytes: int
    windows_limit_bytes: int
    runs_bytes: int  # runs and batches made ahead of the trainers
    # what running tasks hold beside their outputs: decoded blocks, rows that are sent to replicas
    tasks_bytes: int
    limit_bytes: int  # the memory limit
    slices: int  # that map outputs are cut into
    # Whole windows that fit at the same time; with 1 the next window is prepared slice by slice
    # as the current one is consumed.
    windows: int
    exact: bool  # False if block sizes are estimates, or later windows can take more
    processes_bytes: int = 0  # what the processes of workers and trainers take, besides data
    copies: float = 1.0  # how many times a window is held
    window_rows: int = 0  # stored rows of the largest window, each counted once
    overhead: RowOverhead | None = None  # what grows with the row size; None if that is known exactly
    shared: bool = False  # whether runs and tasks count against the limit too
    extra_windows: int = 0  # how many of ``windows`` exceed the requested number
    cache_bytes: int = 0  # the fixed share of the block cache

    @property
    def outputs_limit_bytes(self) -> int:
        """The limit for map outputs, each counted once however many copies there are."""
        # rounded up, so that a window that fits with its copies fits once
        return ceil(self.windows_limit_bytes / self.copies)

    @property
    def shared_bytes(self) -> int:
        """The joint limit for windows, runs and the blocks in tasks where runs and tasks grow with rows.

        Otherwise the limit for windows.
        """
        if self.overhead is None or not self.shared:
            return self.outputs_limit_bytes
        fixed_bytes = self.tasks_bytes - self.overhead.tasks * self.overhead.block_bytes
        return max(0, self.limit_bytes - self.processes_bytes - self.cache_bytes - fixed_bytes)

    @property
    def needed_bytes(self) -> int:
        """Everything that is in use at the same time."""
        windows = self.windows_limit_bytes if self.exact else self.windows_bytes
        return windows + self.runs_bytes + self.tasks_bytes + self.processes_bytes + self.cache_bytes

    @property
    def reuse_bytes(self) -> int:
        """Memory that stays for the next buffers of its size, where the limit leaves it.

        Windows, runs and blocks differ in size. Without it, small windows of token lists return all their memory to the
        system and touch it again, which takes twice their CPU time.
        """
        if not self.shared:
            return 0
        needed = self.needed_bytes
        wanted = max(min(needed, _REUSED_BYTES), needed // _REUSED_PART)
        return max(0, min(wanted, self.limit_bytes - needed))

    @property
    def total_bytes(self) -> int:
        """The memory estimate: everything together."""
        total = self.needed_bytes + self.reuse_bytes
        # the scheduler runs fewer tasks rather than exceed the limit
        return min(total, self.limit_bytes) if self.shared and self.overhead is not None else total

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes of all windows held or being prepared where they fit whole, each counted once.

        Counted in largest windows, so small windows leave memory for more of them.
        """
        return int(self.windows_bytes / self.copies) if self.slices == 1 else 0

    def grown(self, sizes: RowSizes) -> Budget:
        """The same budget with measured row sizes in place of the estimates.

        >>> overhead = RowOverhead(runs=4, run_rows=1000, batch_rows=1, min_run_bytes=5, tasks=1, block_rows=1)
        >>> budget = plan_budget(window_bytes=10, window_rows=2, windows=2, runs_bytes=20, tasks_bytes=2,
        ...     limit_bytes=100, limit_covers_all=True, exact=False, overhead=overhead)
        >>> budget.needed_bytes, budget.grown(RowSizes(7, 3, 5)).needed_bytes
        (42, 73)
        >>> budget.grown(RowSizes(7, 3, 500)).total_bytes
        100
        """
        window_bytes = self.window_bytes + int(self.window_rows * self.copies * sizes.excess_bytes)
        windows_bytes = self.windows_bytes * window_bytes // max(1, self.window_bytes)
        runs_bytes, tasks_bytes, limit = self.runs_bytes, self.tasks_bytes, self.windows_limit_bytes
        if self.overhead is not None:
            runs_bytes = max(runs_bytes, self.overhead.runs_bytes(sizes.row_bytes))
            measured_bytes = self.overhead.blocks_bytes(sizes.stored_row_bytes, 1)
            block_bytes = max(0, measured_bytes - self.overhead.block_bytes)
            tasks_bytes += block_bytes * self.overhead.tasks
            if self.shared:
                limit = max(0, limit - (runs_bytes - self.runs_bytes) - block_bytes)
        return replace(
            self,
            window_bytes=window_bytes,
            windows_bytes=min(limit, windows_bytes),
            windows_limit_bytes=limit,
            runs_bytes=runs_bytes,
            tasks_bytes=tasks_bytes,
        )


def plan_budget(
    *,
    window_bytes: int,
    windows: int,
    runs_bytes: int,
    tasks_bytes: int,
    limit_bytes: int,
    limit_covers_all: bool,
    exact: bool,
    size_within: Callable[[int], int] = int,
    window_call: str = "window",
    processes_bytes: int = 0,
    copies: float = 1.0,
    slices: int = MAX_SLICES,
    max_windows: int = 0,
    window_rows: int = 0,
    overhead: RowOverhead | None = None,
    must_fit: bool = True,
) -> Budget:
    """Fit windows into a memory limit: whole if possible, else sliced and fewer.

    ``windows`` whole ones are to be held at the same time: the one being consumed and the prefetched ones;
    up to ``max_windows`` if they fit. ``limit_covers_all`` says whether runs, tasks and processes count
    against the limit too (on Ray they live outside the object store).

    If not even one window fits, and sizes are certain (``must_fit``), that is a PlanError, else the
    scheduler decides by measured sizes. ``size_within`` maps held bytes to the ``bytes_per_window`` whose
    windows fit into them; 0 or less if single blocks are too large. ``window_call`` is the method that sets it.
    """
    outside = runs_bytes + tasks_bytes + processes_bytes if limit_covers_all else 0
    fixed_bytes = runs_bytes + processes_bytes if limit_covers_all else 0
    rest = limit_bytes - outside
    if window_bytes > rest and must_fit:
        raise PlanError(
            f"the largest window takes {'' if exact else 'about '}{format_bytes(window_bytes)} in memory, and "
            f"the memory limit of {format_bytes(limit_bytes)} leaves {format_bytes(max(rest, 0))} for windows"
            f"{_describe_overhead(runs_bytes, tasks_bytes, processes_bytes) if limit_covers_all else ''}: "
            f"{_fix(size_within(max(rest, 0)), window_call, window_bytes + outside, can_fit=fixed_bytes < limit_bytes)}"
        )
    rest = max(0, rest)
    fitting = min(max(windows, max_windows), rest // window_bytes) if window_bytes else windows
    whole = fitting >= windows
    # where the size is an estimate, a single window can still fit
    fitting = max(fitting, min(1, windows))
    extra = max(0, fitting - windows)
    windows += extra
    # a window of a later epoch can be a little larger than the sampled ones
    max_bytes = min(rest, window_bytes * max(4 * windows, 5) // 4) if whole and exact else rest
    return Budget(
        window_bytes=window_bytes,
        windows_bytes=window_bytes * windows if whole else rest,
        windows_limit_bytes=max_bytes,
        runs_bytes=runs_bytes,
        tasks_bytes=tasks_bytes,
        limit_bytes=limit_bytes,
        slices=1 if whole else slices,
        windows=int(fitting),
        exact=exact,
        processes_bytes=processes_bytes,
        copies=copies,
        window_rows=window_rows,
        overhead=overhead,
        shared=limit_covers_all,
        extra_windows=int(extra),
    )


def _describe_overhead(runs_bytes: int, tasks_bytes: int, processes_bytes: int) -> str:
    process = f", {format_bytes(processes_bytes)} of processes" if processes_bytes else ""
    return f" (besides {format_bytes(runs_bytes)} of runs, {format_bytes(tasks_bytes)} of tasks{process})"


def _fix(size: int, call: str, needed_bytes: int, *, can_fit: bool) -> str:
    """What to do if a window is too large; one of ``size`` bytes would fit, and with ``can_fit``, smaller blocks."""
    more = f'raise options(memory_limit="{ceil(needed_bytes * SUGGESTED_SLACK / 2**20)}MiB") or more'
    if not can_fit:
        return f"{more}, since no window is small enough"
    if size > 0:
        return f"use {call}(bytes_per_window={size}) or less, or {more}"
    return (
        f"give read_parquet a smaller target_block_bytes and use {call}(bytes_per_window=...) of a few blocks, "
        f"or {more}"
    )
