"""What the scheduler is told, and what it answers: plain values, nothing that runs."""

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
    """One step of preparing a part of a window.

    Attributes
    ----------
    name
        For messages and timelines.
    needs_order
        It computes positions, so it cannot run before the row counts that these
        depend on are known.
    """

    name: str
    needs_order: bool


@dataclass(frozen=True)
class Part:
    """Some blocks of a window that one task prepares.

    Attributes
    ----------
    rows
        Rows it delivers, or None while unknown.
    size_bytes
        What its output is expected to take.
    unpacked_bytes
        The same if words were not packed, as they are in runs and batches; None: no less.
    stored_rows
        Its rows as stored, or an estimate of them; None: as many as it delivers.
    """

    rows: int | None
    size_bytes: int
    unpacked_bytes: int | None = None
    stored_rows: int | None = None

    @property
    def weight(self) -> int:
        """Its rows as stored, by which sizes are estimated; at least 1."""
        return max(1, self.stored_rows or self.rows or 0)


@dataclass(frozen=True)
class EpochShape:
    """An epoch as the scheduler sees it.

    Attributes
    ----------
    windows
        The parts of each window.
    stages
        What every part goes through, in this order.
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

    ``attempt`` tells a task's late result from the one that is waited for, after the
    window has been dropped and started again.
    """

    epoch: int
    window: int
    part: int
    stage: int
    attempt: int


@dataclass(frozen=True)
class Limits:
    """What bounds a scheduler.

    Attributes
    ----------
    shards
        The shards that are served.
    start
        Where the stream begins.
    stop_epoch
        The first epoch that is not delivered; None: for ever.
    slots
        Tasks that may run at once.
    memory_bytes
        What outputs, those being made included, may hold.
    prefetch_windows
        Windows prepared beyond those being consumed.
    crosses_epochs
        Whether the next epoch is prepared before a shard has opened it.
    slices
        Into how many slices a window's outputs are cut.
    patience_seconds
        How long a shard waits for memory before rows held only for shards that do not
        move are dropped.
    beside
        What is held under the same limit and grows with the rows: then ``memory_bytes`` is what it and
        outputs may hold together. None: nothing.
    row_bytes
        What a row was estimated to take in runs and batches.
    exact
        Whether what tasks put out is known, and not only expected.
    bounds_tasks
        Whether tasks are told how much they may put out, since their rows may turn out to be large.
    ahead_bytes
        What as many windows as are to be held are expected to take, were each the largest: smaller ones
        leave room for parts of windows farther ahead than ``prefetch_windows``. 0: none are begun.
    """

    shards: tuple[int, ...]
    start: Place
    stop_epoch: int | None
    slots: int
    memory_bytes: int
    prefetch_windows: int
    crosses_epochs: bool
    slices: int
    patience_seconds: float
    overhead: RowOverhead | None = None
    row_bytes: int = 0
    exact: bool = True
    bounds_tasks: bool = False
    read_ahead_bytes: int = 0


@dataclass(frozen=True)
class Opened:
    """A shard began an epoch, or goes on in it, with this deal.

    Attributes
    ----------
    first_row
        The row of the epoch at which the place's window begins.
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
    """A shard will read no more."""

    shard: int


@dataclass(frozen=True)
class Finished:
    """A task ended well.

    Attributes
    ----------
    rows
        Rows of the part.
    slice_bytes
        Measured bytes of its output, slice by slice; one entry before the last stage.
    unpacked_bytes
        All of it if words were not packed; None: no less.
    """

    work: Work
    rows: int
    slice_bytes: tuple[int, ...]
    unpacked_bytes: int | None = None


@dataclass(frozen=True)
class Overflowed:
    """A task ended before it had put out more than it may; nothing is kept of it.

    Attributes
    ----------
    share
        The share of the part's rows that it had read.
    rows, size_bytes
        What it had put out for these by then.
    least_bytes
        What the part puts out at least: the blocks that were begun.
    """

    work: Work
    share: float
    rows: int
    size_bytes: int
    min_bytes: int


@dataclass(frozen=True)
class AttemptLost:
    """What an attempt at a window has put out is lost to those that need it."""

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
    most_bytes
        What it may put out; None: whatever it comes to.
    samples
        Whether it has to look at a few rows of a block first, since nobody has measured what they take.
    """

    work: Work
    max_bytes: int | None = None
    samples: bool = False


@dataclass(frozen=True)
class Drop:
    """Let go of the outputs of a window: these slices, or all of it and its running tasks.

    ``again`` says that some shard still needs the window, so it will be produced anew.
    """

    epoch: int
    window: int
    slices: tuple[int, ...] | None = None
    rebuild: bool = False


@dataclass(frozen=True)
class Abort:
    """The stream cannot go on: a window turned out not to fit.

    Attributes
    ----------
    window_bytes
        What it takes, as far as that has been measured.
    limit_bytes
        What is free for windows.
    sizes
        What rows have been measured to take.
    """

    epoch: int
    window: int
    window_bytes: int
    limit_bytes: int
    sizes: RowSizes


Instruction = Run | Drop | Abort
ShapeOf = Callable[[int], EpochShape]
