"""What a run will hold in memory, decided before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError

__all__ = ["MAX_SLICES", "WHOLE_RUNS", "Budget", "RowOverhead", "RowSizes", "plan_budget"]

MAX_SLICES = 8
# Runs of up to so many times the usual bytes are placed whole; larger ones in portions of the usual bytes.
WHOLE_RUNS = 2


@dataclass(frozen=True)
class RowSizes:
    """What rows have been measured to take.

    Attributes
    ----------
    row_bytes
        A delivered row in runs and batches.
    stored_row_bytes
        In the blocks that tasks hold, for each row as stored.
    excess_bytes
        What windows hold for each row as stored beyond the estimate; 0 or more.
    growth
        How many times the estimate blocks take; 1 or more.
    """

    row_bytes: float = 0.0
    stored_row_bytes: float = 0.0
    excess_bytes: float = 0.0
    growth: float = 1.0


@dataclass(frozen=True)
class RowOverhead:
    """What is held beside windows, computed from what a row takes. The floors do not scale.

    Attributes
    ----------
    runs
        Runs and batches that are held at once, of all shards together.
    run_rows, batch_rows
        Rows of a run, which is placed in portions where it is large, and of a batch, which is not.
    least_run_bytes
        What is set aside for a run however small its rows are.
    tasks
        Tasks that run at once at most. Each holds a block.
    block_rows
        Rows of the largest block, as stored.
    least_block_bytes
        What is set aside for a block however small its rows are.
    row_bytes, block_bytes
        The estimates for a row and for what a task holds of blocks.

    Examples
    --------
    >>> beside = Beside(runs=4, run_rows=1000, batch_rows=10, min_run_bytes=800)
    >>> [beside.runs_bytes(row_bytes) // 4 for row_bytes in (0, 1, 100, 1000)]
    [800, 1000, 1000, 10000]
    """

    runs: int
    run_rows: int
    batch_rows: int
    min_run_bytes: int
    tasks: int = 0
    block_rows: int = 0
    min_block_bytes: int = 0
    row_bytes: int = 0
    block_bytes: int = 0

    def runs_bytes(self, row_bytes: float) -> int:
        """What runs and batches take where a row takes so much."""
        run_bytes = max(float(self.min_run_bytes), self.batch_rows * row_bytes)
        if self.run_rows * row_bytes <= WHOLE_RUNS * self.min_run_bytes:
            run_bytes = max(run_bytes, self.run_rows * row_bytes)
        return self.runs * ceil(run_bytes)

    def blocks_bytes(self, stored_row_bytes: float, tasks: int) -> int:
        """What the blocks of so many running tasks take where a stored row takes so much."""
        return tasks * max(self.min_block_bytes, ceil(self.block_rows * stored_row_bytes))


@dataclass(frozen=True)
class Budget:
    """The bytes that a run may hold at once.

    Attributes
    ----------
    window_bytes
        The largest window.
    windows_bytes
        All windows at once, as far as is known beforehand.
    windows_limit_bytes
        What windows may hold at most, and the scheduler is bound by: more than
        ``windows_bytes`` where that is an estimate, or a single window that may be
        larger in another epoch, and the limit leaves room.
    runs_bytes
        Runs and batches made ahead of the trainers.
    tasks_bytes
        What running tasks hold beside their outputs: decoded blocks.
    limit_bytes
        What was allowed.
    slices
        Into how many slices map outputs are cut.
    windows
        How many whole windows fit at once (1 means that the next one is prepared as
        the current one is consumed, slice by slice).
    spare_windows
        How many of these are more than was asked for.
    exact
        False when the sizes of blocks are estimates.
    processes_bytes
        What the processes of workers and trainers take, beside the data.
    copies
        How often a window is held: the bytes of windows above count every copy.
    window_rows
        Rows of the largest window as stored, each counted once.
    beside
        What grows with the rows beside the windows; None where that is known exactly.
    shared
        Whether runs and tasks count against the limit too.
    """

    window_bytes: int
    windows_bytes: int
    windows_limit_bytes: int
    runs_bytes: int
    tasks_bytes: int
    limit_bytes: int
    slices: int
    windows: int
    exact: bool
    processes_bytes: int = 0
    copies: float = 1.0
    window_rows: int = 0
    overhead: RowOverhead | None = None
    shared: bool = False
    extra_windows: int = 0

    @property
    def outputs_limit_bytes(self) -> int:
        """What map outputs may take, each counted once, wherever else it is copied to."""
        # rounded up, so that a window that fits with its copies fits once
        return ceil(self.windows_limit_bytes / self.copies)

    @property
    def shared_bytes(self) -> int:
        """What windows, runs and the blocks in tasks may take together, where runs and tasks grow with rows.

        Otherwise what windows may.
        """
        if self.overhead is None or not self.shared:
            return self.outputs_limit_bytes
        kept = self.tasks_bytes - self.overhead.tasks * self.overhead.block_bytes
        return max(0, self.limit_bytes - self.processes_bytes - kept)

    @property
    def total_bytes(self) -> int:
        """The promise: everything together."""
        windows = self.windows_limit_bytes if self.exact else self.windows_bytes
        total = windows + self.runs_bytes + self.tasks_bytes + self.processes_bytes
        # fewer tasks are run, rather than more held
        return min(total, self.limit_bytes) if self.shared and self.overhead is not None else total

    @property
    def read_ahead_bytes(self) -> int:
        """What all windows may take that are held and prepared at once where they fit whole, each counted once.

        Of small windows, that is more than there are largest ones.
        """
        return int(self.windows_bytes / self.copies) if self.slices == 1 else 0

    def grown(self, sizes: RowSizes) -> Budget:
        """The same budget where rows have been measured to take more than was estimated.

        Examples
        --------
        >>> beside = Beside(runs=4, run_rows=1000, batch_rows=1, min_run_bytes=5, tasks=1, block_rows=1)
        >>> budget = plan_budget(window_bytes=10, window_rows=2, windows=2, runs_bytes=20, tasks_bytes=2,
        ...     limit_bytes=100, limit_covers_all=True, exact=False, overhead=overhead)
        >>> budget.total_bytes, budget.grown(RowSizes(7, 3, 5)).total_bytes
        (42, 73)
        >>> budget.grown(RowSizes(7, 3, 500)).total_bytes
        100
        """
        window_bytes = self.window_bytes + int(self.window_rows * self.copies * sizes.excess_bytes)
        windows_bytes = self.windows_bytes * window_bytes // max(1, self.window_bytes)
        runs_bytes, tasks_bytes, limit = self.runs_bytes, self.tasks_bytes, self.windows_limit_bytes
        if self.overhead is not None:
            runs_bytes = max(runs_bytes, self.overhead.runs_bytes(sizes.row_bytes))
            block_bytes = max(
                0, self.overhead.blocks_bytes(sizes.stored_row_bytes, 1) - self.overhead.block_bytes
            )
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
    processes_bytes: int = 0,
    copies: float = 1.0,
    slices: int = MAX_SLICES,
    max_windows: int = 0,
    window_rows: int = 0,
    overhead: RowOverhead | None = None,
    must_fit: bool = True,
) -> Budget:
    """Fit windows into a memory limit: slice finer, then overlap less, then refuse.

    Parameters
    ----------
    window_bytes
        Bytes of the largest window, as held by the run.
    windows
        Whole windows that are to be held at once: the one being consumed and those
        prepared ahead.
    limit_covers_all
        Whether runs, tasks and processes count against the limit too (they live outside
        the object store on Ray).
    size_within
        The ``bytes_per_window`` whose windows take at most so many bytes as held; 0 or
        less where single blocks are too large.
    processes_bytes
        What processes take beside the data.
    copies
        How often a window is held; ``window_bytes`` counts every copy.
    slices
        Into how many slices to cut where not all windows fit.
    most_windows
        Whole windows that are held if they fit, where that is more than ``windows``.
    window_rows, beside
        As `Budget` has them.
    refuses
        Whether the sizes are certain enough to refuse what does not fit. Otherwise that is left to
        what is measured.

    Raises
    ------
    PlanError
        When not even one window fits; it names the largest that would.
    """
    outside = runs_bytes + tasks_bytes + processes_bytes if limit_covers_all else 0
    rest = limit_bytes - outside
    if window_bytes > rest and must_fit:
        raise PlanError(
            f"the largest window takes {'' if exact else 'about '}{format_bytes(window_bytes)} as held, and "
            f"the memory limit of {format_bytes(limit_bytes)} leaves {format_bytes(max(rest, 0))} for windows"
            f"{_describe_overhead(runs_bytes, tasks_bytes, processes_bytes) if limit_covers_all else ''}: "
            f"{_fix(size_within(max(rest, 0)))}, or raise options(memory_limit=...)"
        )
    rest = max(0, rest)
    fitting = min(max(windows, max_windows), rest // window_bytes) if window_bytes else windows
    whole = fitting >= windows
    # one at a time may yet fit, where its size is an estimate
    fitting = max(fitting, min(1, windows))
    extra = max(0, fitting - windows)
    windows += extra
    # a window of a later epoch may be a little larger than those that were looked at
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
    process = f", {format_bytes(processes_bytes)} of the process" if processes_bytes else ""
    return f" (beside {format_bytes(runs_bytes)} of runs, {format_bytes(tasks_bytes)} of tasks{process})"


def _fix(size: int) -> str:
    if size > 0:
        return f"ask for window(bytes_per_window={size}) or less"
    return "give read_parquet a smaller target_block_bytes and ask for window(bytes_per_window=...) of a few blocks"
