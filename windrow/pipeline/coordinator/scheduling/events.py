"""Events and instructions of the scheduler, and its limits: plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.epoch_shape import EpochShape
from windrow.pipeline.plan.window_budget import RowOverhead, RowSizes
from windrow.pipeline.tasks.task import Shortfall, Work
from windrow.shuffle.order.shard_assignment import ShardAssignment


@dataclass(frozen=True)
class Limits:
    """The limits of a scheduler.

    ``memory_bytes`` bounds outputs, including those being made, and what ``overhead`` describes: memory
    that grows with the row size. ``read_ahead_bytes`` is the expected size of the windows to hold if each
    were as large as the largest; what smaller ones leave of it is used to read parts of windows beyond
    ``prefetch_windows``.
    """

    shards: tuple[int, ...]
    stop_epoch: int | None  # the first epoch that is not delivered; None: endless
    slots: int  # maximum number of concurrent tasks
    memory_bytes: int
    prefetch_windows: int  # beyond those being consumed
    crosses_epochs: bool  # whether the next epoch is prepared before a shard has opened it
    slices: int  # the number of slices that a window's outputs are cut into
    heartbeat_timeout_seconds: float  # windows held only for shards silent for this long can be dropped
    overhead: RowOverhead | None = None
    row_bytes: int = 0  # estimated size of a row in runs and batches
    exact: bool = True  # whether output sizes are known rather than estimated
    bounds_tasks: bool = False  # whether tasks get an output limit, since their rows can turn out to be large
    read_ahead_bytes: int = 0


@dataclass(frozen=True)
class Opened:
    """A shard started or resumed an epoch; ``first_row`` is the row at which the place's window starts."""

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
    """A task succeeded."""

    work: Work
    rows: int
    slice_bytes: tuple[int, ...]  # measured; a single entry before the last stage
    unpacked_bytes: int | None = None  # of all slices, with values unpacked; None: the same
    # whether its rows count as known: not if a late task has not measured them, as the epoch needs by now
    is_counted: bool = True


@dataclass(frozen=True)
class Overflowed:
    """A task stopped because its output would exceed its limit; its output is discarded."""

    work: Work
    shortfall: Shortfall


@dataclass(frozen=True)
class AttemptLost:
    """The outputs of an attempt at a window are lost to the shards that need them."""

    epoch: int
    window: int
    attempt: int


@dataclass(frozen=True)
class Replanned:
    """The shape of an epoch has changed: all of its windows are prepared again."""

    epoch: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Opened | Acknowledged | Heartbeat | Closed | Finished | Overflowed | AttemptLost | Replanned | Tick


@dataclass(frozen=True)
class Run:
    """Start this task."""

    work: Work
    max_bytes: int | None = None  # the limit for its output; None: unlimited
    samples: bool = False  # whether to sample a few rows first, since row sizes have not been measured


@dataclass(frozen=True)
class Drop:
    """Release these slices of a window, or (None) all of it and its running tasks.

    With ``rebuild`` some shard still needs the window, so it will be prepared again; ``evicts`` tells that other
    windows needed its memory.
    """

    epoch: int
    window: int
    slices: tuple[int, ...] | None = None
    rebuild: bool = False
    evicts: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Abort:
    """End the stream: by measured sizes, a window does not fit into the memory available to windows."""

    epoch: int
    window: int
    window_bytes: int
    limit_bytes: int
    sizes: RowSizes


Instruction = Run | Drop | Abort
ShapeOf = Callable[[int], EpochShape]
