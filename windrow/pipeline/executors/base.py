"""The executor seam: everything that differs between running here and on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Protocol, TypeVar

from windrow.core.buffer_pool import BufferPool
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.coordinator.stats import RunStats
from windrow.pipeline.plan.job import Launch
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.consumer_pace import Pace
from windrow.pipeline.tasks.map_task import Task
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["CoordinatorClient", "EpochFacts", "Executor", "Resources", "Session", "TaskRunner", "WindowData"]

T = TypeVar("T")


@dataclass(frozen=True)
class Resources:
    """What an executor has to run on.

    Attributes
    ----------
    executor
        Its name, and why it was chosen.
    workers
        Tasks that run at once.
    memory_bytes
        The memory limit where the user gives none.
    limit_covers_all
        Whether runs, decoded blocks and processes count against that limit too.
    copies
        How often a window is held: rows that move between nodes stand on both.
    nodes
        Machines that shards may be read on.
    look_out
        What the user should know, one line each.
    processes_bytes, shard_bytes
        What processes take for the run beside data: all workers, and each shard's.
    worker_bytes
        Of ``processes_bytes``, what one more worker would take.
    task_cpus
        The share of a CPU that a task is given.
    small_windows_bytes
        Where more windows than are asked for take no more than this together, a few more are held:
        shards then need not tell of each at once that they have passed it.
    processes
        How many processes divide what there is; the figures above are one's share.
    """

    executor: str
    workers: int
    memory_bytes: int
    limit_covers_all: bool
    copies: float = 1.0
    user_warnings: tuple[str, ...] = ()
    processes_bytes: int = 0
    shard_bytes: int = 0
    nodes: int = 1
    worker_bytes: int = 0
    task_cpus: float = 1.0
    small_windows_bytes: int = 0
    processes: int = 1


@dataclass(frozen=True)
class EpochFacts:
    """What a shard is told when it opens an epoch.

    Attributes
    ----------
    epoch
        Its number.
    first_window, windows
        Where to begin, and how many there are.
    deal
        How it is dealt.
    run_rows
        Rows of a full run.
    total
        Rows of the epoch, or None while unknown.
    look_out
        What the user should know before the first batch, one line each.
    spare_windows
        How many windows the run holds beyond those that were asked for.
    """

    epoch: int
    first_window: int
    windows: int
    assignment: ShardAssignment
    run_rows: int
    total: int | None
    user_warnings: tuple[str, ...] = ()
    extra_windows: int = 0

    @property
    def next_epoch(self) -> EpochFacts:
        """What the shard will be told of the next epoch, where that is dealt alike and no row count changes."""
        assignment = replace(self.assignment, start_row=0)
        return replace(self, epoch=self.epoch + 1, first_window=0, assignment=assignment, user_warnings=())


@dataclass
class WindowData:
    """The map outputs of one window on the way to one shard.

    Attributes
    ----------
    layout
        The runs; None when the window has no blocks.
    slices
        The pieces of each slice; emptied slice by slice as they are used up.
    look_out
        What users should know by now, one line each.
    starts, corrupt, row_bytes
        As in `WindowReply`.
    """

    layout: WindowRuns | None
    slices: list[MapOutputs]
    user_warnings: Sequence[str] = ()
    starts: Sequence[tuple[int, int]] = ()
    corrupt: Sequence[int] = ()
    row_bytes: float = 0.0


class CoordinatorClient(Protocol):
    """One shard's line to the run."""

    @property
    def pool(self) -> BufferPool:
        """Memory for runs."""
        ...

    def open_epoch(self, cursor: Cursor, batch_rows: int, *, drop_last: bool) -> EpochFacts:
        """Begin an epoch, or go on in it."""
        ...

    def open_next(self, cursor: Cursor, batch_rows: int, *, drop_last: bool) -> Future[EpochFacts]:
        """Begin the epoch after the open one at its first row, without waiting for what there is to say.

        Windows of it that were asked for ahead are still good.
        """
        ...

    def begin_prefetch(self) -> None:
        """Prepare the calling thread, which will ask for the windows, and is woken by the consumer."""
        ...

    def window(self, epoch: int, window: int, stop: Event) -> WindowData | None:
        """Wait for a window; None when ``stop`` is set first.

        After `release` the same window may be asked for again. Windows of the next epoch may be
        asked for where the job leads on to it, as it is expected to be dealt: as the open one.
        """
        ...

    def release(self, stop: Event) -> None:
        """Hold no windows until the next one is asked for: the consumer takes nothing.

        Not where ``stop`` is set: then others may be asking already.
        """
        ...

    def acknowledge(self, place: Place) -> None:
        """Tell that nothing before ``place`` is needed any more."""
        ...

    def heartbeat(self) -> None:
        """Tell that the consumer is alive: it takes rows or waits for them."""
        ...

    def note_delivered(self, row_bytes: float) -> None:
        """Tell what a row takes as it is delivered, where transforms after the shuffle make it."""
        ...

    def submit(self, place: Callable[[], T], pace: Pace) -> Future[T]:
        """Place a run's rows, in another thread.

        For a consumer that works it goes before what runs there, if it can; to one that computes
        itself a core is left.
        """
        ...

    def diagnose(self) -> tuple[str, float]:
        """Say what the shard waits for, and for how many seconds nothing has moved."""
        ...

    def run_stats(self, *, spans: bool) -> RunStats:
        """What the run has done so far, for all shards.

        Raises
        ------
        StallError
            If the run does not answer.
        """
        ...

    def close(self) -> None:
        """The shard reads no more."""
        ...


class Session(Protocol):
    """A run for some shards: under way, or about to be."""

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect a shard, to a new run where the last one has failed.

        Call it in the process that reads the shard. The seed is what the shard goes by, which
        is another than the program's where a state brought one.

        Raises
        ------
        StateError
            If other shards of this session read by another seed.
        """
        ...

    def export(self, shard: int) -> Session:
        """The session to send to another process with one shard."""
        ...


class Executor(Protocol):
    """Something that can run a program."""

    @property
    def name(self) -> str:
        """``"threads"``, ``"ray"``, ..."""
        ...

    def resources(self, launch: Launch = Launch()) -> Resources:
        """What there is to run on, for one of the processes that a launcher has started; starts nothing."""
        ...

    def session(self, program: Program, hints: Sequence[Any] | None) -> Session:
        """Make a run for the shards of a program."""
        ...


class TaskRunner(Protocol):
    """How a driver gets its tasks done."""

    @property
    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """The shards, grouped by where map outputs should go."""
        ...

    def run(self, task: Task, tables: Any, *cached: Any) -> None:
        """Start a task; later the driver's ``task_done`` or ``task_failed`` is called.

        ``tables`` is the handle of the reading task's output, for one that only places;
        ``cached`` are those of the kept blocks that ``task.found`` names.
        """
        ...
