"""What a run will hold in memory, decided before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from windrow.core.errors import PlanError
from windrow.core.sizes import format_bytes

__all__ = ["MAX_SLICES", "Budget", "plan_budget"]

MAX_SLICES = 8


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
    blocks_bytes
        Of ``tasks_bytes``, a block in each task: where blocks turn out larger, so does this.
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
    blocks_bytes: int = 0
    shared: bool = False
    spare_windows: int = 0

    @property
    def outputs_limit_bytes(self) -> int:
        """What map outputs may take, each counted once, wherever else it is copied to."""
        # rounded up, so that a window that fits with its copies fits once
        return ceil(self.windows_limit_bytes / self.copies)

    @property
    def total_bytes(self) -> int:
        """The promise: everything together."""
        windows = self.windows_limit_bytes if self.exact else self.windows_bytes
        return windows + self.runs_bytes + self.tasks_bytes + self.processes_bytes

    @property
    def ahead_bytes(self) -> int:
        """What all windows may take that are held and prepared at once where they fit whole, each counted once.

        Of small windows, that is more than there are largest ones.
        """
        return int(self.windows_bytes / self.copies) if self.slices == 1 else 0

    @property
    def beside_bytes(self) -> int:
        """What grows with the rows beside the windows, under the same limit."""
        return self.runs_bytes + self.blocks_bytes if self.shared else 0

    def grown(self, growth: float, windows_growth: float) -> Budget:
        """The same budget where blocks turn out to take ``growth`` times what was expected.

        Windows, where words are packed, take ``windows_growth`` times as much.

        Examples
        --------
        >>> budget = plan_budget(window_bytes=10, windows=2, runs_bytes=2, tasks_bytes=2,
        ...     limit_bytes=50, limit_covers_all=True, exact=False, blocks_bytes=2)
        >>> budget.total_bytes, budget.grown(2.0, 2.0).total_bytes, budget.grown(3.0, 3.0).total_bytes
        (24, 48, 50)
        >>> budget.grown(2.0, 1.0).total_bytes
        28
        """
        windows_limit = max(0, self.windows_limit_bytes - int(self.beside_bytes * (growth - 1)))
        return replace(
            self,
            window_bytes=int(self.window_bytes * windows_growth),
            windows_bytes=min(windows_limit, int(self.windows_bytes * windows_growth)),
            windows_limit_bytes=windows_limit,
            runs_bytes=int(self.runs_bytes * growth),
            tasks_bytes=self.tasks_bytes + int(self.blocks_bytes * (growth - 1)),
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
    blocks_bytes: int = 0,
    most_windows: int = 0,
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
    blocks_bytes
        Of ``tasks_bytes``, a block in each task.
    most_windows
        Whole windows that are held if they fit, where that is more than ``windows``.

    Raises
    ------
    PlanError
        When not even one window fits; it names the largest that would.
    """
    beside = runs_bytes + tasks_bytes + processes_bytes
    rest = limit_bytes - (beside if limit_covers_all else 0)
    if window_bytes > rest:
        raise PlanError(
            f"the largest window takes {'' if exact else 'about '}{format_bytes(window_bytes)} as held, and "
            f"the memory limit of {format_bytes(limit_bytes)} leaves {format_bytes(max(rest, 0))} for windows"
            f"{_beside(runs_bytes, tasks_bytes, processes_bytes) if limit_covers_all else ''}: "
            f"{_remedy(size_within(max(rest, 0)))}, or raise options(memory_limit=...)"
        )
    fitting = min(max(windows, most_windows), rest // window_bytes) if window_bytes else windows
    whole = fitting >= windows
    spare = max(0, fitting - windows)
    windows += spare
    # a window of a later epoch may be a little larger than those that were looked at
    most = min(rest, window_bytes * max(4 * windows, 5) // 4) if whole and exact else rest
    return Budget(
        window_bytes=window_bytes,
        windows_bytes=window_bytes * windows if whole else rest,
        windows_limit_bytes=most,
        runs_bytes=runs_bytes,
        tasks_bytes=tasks_bytes,
        limit_bytes=limit_bytes,
        slices=1 if whole else slices,
        windows=int(fitting),
        exact=exact,
        processes_bytes=processes_bytes,
        copies=copies,
        blocks_bytes=blocks_bytes,
        shared=limit_covers_all,
        spare_windows=int(spare),
    )


def _beside(runs_bytes: int, tasks_bytes: int, processes_bytes: int) -> str:
    process = f", {format_bytes(processes_bytes)} of the process" if processes_bytes else ""
    return f" (beside {format_bytes(runs_bytes)} of runs, {format_bytes(tasks_bytes)} of tasks{process})"


def _remedy(size: int) -> str:
    if size > 0:
        return f"ask for window(bytes_per_window={size}) or less"
    return "give read_parquet a smaller target_block_bytes and ask for window(bytes_per_window=...) of a few blocks"
