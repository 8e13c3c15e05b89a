"""Events and instructions of the scheduler, its limits and its view of an epoch: plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windrow.pipeline.plan.window_budget import RowOverhead, RowSizes
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = [
    "Abort",
    "Acknowledged",
    "AttemptLost",
    "Closed",
    "Drop",
    "EpochShape",
    "Event",
    "Finished",
    "Heartbeat",
    "Instruction",
    "Limits",
    "Opened",
    "Overflowed",
    "Part",
    "Place",
    "Run",
    "Stage",
    "Tick",
    "Work",
]


@dataclass(frozen=True)
class Stage:
    """One stage of preparing a part of a window.

    Attributes
    ----------
    name
        For messages and timelines.
    needs_order
        Whether it computes positions, and so cannot run before the row counts that they depend
        on are known.
    """

    name: str
    needs_order: bool


@dataclass(frozen=True)
class Part:
    """An input split: the blocks of a window that one task prepares.

    Attributes
    ----------
    rows
        Rows it delivers, or None while unknown.
    size_bytes
        Expected size of its output.
    unpacked_bytes
        Expected size with values unpacked, as in runs and batches; None: the same.
    stored_rows
        Its stored rows, or an estimate of them; None: as many as it delivers.
    """

    rows: int | None
    size_bytes: int
    unpacked_bytes: int | None = None
    stored_rows: int | None = None

    @property
    def weight(self) -> int:
        """Its stored rows, by which sizes are estimated; at least 1."""
        return max(1, self.stored_rows or self.rows or 0)


@dataclass(frozen=True)
class EpochShape:
    """An epoch as the scheduler sees it.

    Attributes
    ----------
    windows
        The parts of each window.
    stages
        The stages of every part, in order.
    """

    windows: tuple[tuple[Part, ...], ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, order=True)
class Place:
    """A place in the stream of windows; slices below ``slice`` have been consumed."""

    epoch: int
    window: int
    slice: int = 0


@dataclass(frozen=True, order=True)
class Work:
    """One task: a part of a window, at one stage.

    ``attempt`` distinguishes results of this attempt at the window from late results of an
    earlier one, after the window has been dropped and restarted.
    """

    epoch: int
    window: int
    part: int
    stage: int
    attempt: int


@dataclass(frozen=True)
class Limits:
    """The limits of a scheduler.

    Attributes
    ----------
    shards
        The shards that are served.
    start
        Where the stream starts.
    stop_epoch
        The first epoch that is not delivered; None: endless.
    slots
        Maximum number of concurrent tasks.
    memory_bytes
        Maximum bytes of outputs, including those being made.
    prefetch_windows
        Windows prepared beyond those being consumed.
    crosses_epochs
        Whether the next epoch is prepared before a shard has opened it.
    slices
        The number of slices that a window's outputs are cut into.
    heartbeat_timeout_seconds
        A shard without a heartbeat for this long counts as silent: windows held only for silent
        shards can be dropped.
    overhead
        Memory under the same limit that grows with the row size: ``memory_bytes`` then limits it and
        outputs together. None: there is none.
    row_bytes
        Estimated bytes of a row in runs and batches.
    exact
        Whether output sizes are known rather than estimated.
    bounds_tasks
        Whether tasks get an output limit, since their rows can turn out to be large.
    read_ahead_bytes
        Expected bytes of the windows to hold if each were as large as the largest. What smaller
        windows leave of it is used to read parts of windows beyond ``prefetch_windows``. 0: no read-ahead.
    """

    shards: tuple[int, ...]
    start: Place
    stop_epoch: int | None
    slots: int
    memory_bytes: int
    prefetch_windows: int
    crosses_epochs: bool
    slices: int
    heartbeat_timeout_seconds: float
    overhead: RowOverhead | None = None
    row_bytes: int = 0
    exact: bool = True
    bounds_tasks: bool = False
    read_ahead_bytes: int = 0


@dataclass(frozen=True)
class Opened:
    """A shard started or resumed an epoch with this shard assignment.

    Attributes
    ----------
    first_row
        The row of the epoch at which the place's window starts.
    """

    shard: int
    place: Place
    assignment: ShardAssignment
    first_row: int = 0


@dataclass(frozen=True)
class Acknowledged:
    """A shard no longer needs anything before this place."""

    shard: int
    place: Place


@dataclass(frozen=True)
class Heartbeat:
    """A shard's consumer is alive: it takes rows or waits for them."""

    shard: int


@dataclass(frozen=True)
class Closed:
    """A shard has stopped reading."""

    shard: int


@dataclass(frozen=True)
class Finished:
    """A task succeeded.

    Attributes
    ----------
    rows
        Rows of the part.
    slice_bytes
        Measured bytes of its output, slice by slice; a single entry before the last stage.
    unpacked_bytes
        Bytes of all of it with values unpacked; None: the same.
    """

    work: Work
    rows: int
    slice_bytes: tuple[int, ...]
    unpacked_bytes: int | None = None


@dataclass(frozen=True)
class Overflowed:
    """A task stopped because its output would exceed its limit; its output is discarded.

    Attributes
    ----------
    share
        The share of the part's rows that it had read.
    rows, size_bytes
        Rows and bytes of its output up to then.
    min_bytes
        Lower bound of the part's output: the blocks that it had started.
    """

    work: Work
    share: float
    rows: int
    size_bytes: int
    min_bytes: int


@dataclass(frozen=True)
class AttemptLost:
    """The outputs of an attempt at a window are lost to the shards that need them."""

    epoch: int
    window: int
    attempt: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Opened | Acknowledged | Heartbeat | Closed | Finished | Overflowed | AttemptLost | Tick


@dataclass(frozen=True)
class Run:
    """Start this task.

    Attributes
    ----------
    max_bytes
        The limit for its output; None: unlimited.
    samples
        Whether it must first sample a few rows of a block, since row sizes have not been measured.
    """

    work: Work
    max_bytes: int | None = None
    samples: bool = False


@dataclass(frozen=True)
class Drop:
    """Release these slices of a window, or (None) all of it and its running tasks.

    With ``rebuild`` some shard still needs the window, so it will be prepared again.
    """

    epoch: int
    window: int
    slices: tuple[int, ...] | None = None
    rebuild: bool = False


@dataclass(frozen=True)
class Abort:
    """End the stream: a window turned out not to fit.

    Attributes
    ----------
    window_bytes
        Its size, as far as measured.
    limit_bytes
        The memory available to windows.
    sizes
        The measured row sizes.
    """

    epoch: int
    window: int
    window_bytes: int
    limit_bytes: int
    sizes: RowSizes


Instruction = Run | Drop | Abort
ShapeOf = Callable[[int], EpochShape]
