"""The executor interface: everything that differs between running in one process and on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol, TypeVar

from windrow.core.buffer_pool import BufferPool
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.executors.consumer_pace import Pace
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Launch
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.resources import Resources
from windrow.pipeline.statistics.phases import Interval, TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.ordered_rows import OrderedOutputs
from windrow.shuffle.order.runs import WindowRuns

__all__ = ["CoordinatorClient", "Executor", "Session", "WindowData"]

T = TypeVar("T")


@dataclass
class WindowData:
    """The map outputs of one window on the way to one shard."""

    # the runs; None when the window has no blocks
    layout: WindowRuns | None
    # the map outputs of each slice; slices are cleared as they are consumed
    slices: list[MapOutputs | OrderedOutputs]
    # so far, one line each
    user_warnings: Sequence[str] = ()
    # the rest as in `WindowReply`
    starts: Sequence[tuple[int, int]] = ()
    corrupt: Sequence[int] = ()
    row_bytes: float = 0.0
    history: Sequence[Interval] = ()
    # when map outputs were on their way to this process, parts of its history
    transfers: Sequence[Interval] = ()


class CoordinatorClient(Protocol):
    """One shard's client of the coordinator."""

    @property
    def pool(self) -> BufferPool:
        """Memory for runs."""

    def open_epoch(self, cursor: Cursor, batch_rows: int, *, drop_last: bool) -> EpochFacts:
        """Open an epoch at ``cursor``."""

    def open_next(self, cursor: Cursor, batch_rows: int, *, drop_last: bool) -> Future[EpochFacts]:
        """Open the epoch after the open one at its first row, without waiting for the reply.

        Windows of it that were prefetched stay valid.
        """

    def begin_prefetch(self) -> None:
        """Set up the calling thread, which requests the windows and is woken by the consumer."""

    def window(self, epoch: int, window: int, stop: Event) -> WindowData | None:
        """Wait for a window; None if ``stop`` is set first.

        After `release`, the same window can be requested again. If the job continues with the next
        epoch, its windows can be requested too; they follow the shard assignment of the open epoch.
        """

    def release(self, stop: Event) -> None:
        """Release all windows until the next request: the consumer is idle.

        Does nothing if ``stop`` is set: another thread may be requesting windows already.
        """

    def acknowledge(self, place: Place) -> None:
        """Report that nothing before ``place`` is needed any more."""

    def heartbeat(self, stats: TrainerStats) -> None:
        """Report that the consumer is alive: it takes rows or waits for them, and what it has received."""

    def note_delivered(self, row_bytes: float) -> None:
        """Report the size of a delivered row, where transforms after the shuffle change it."""

    def submit(self, place: Callable[[], T], pace: Pace) -> Future[T]:
        """Place a run's rows in another thread.

        If the consumer mostly works, placement takes precedence over running tasks where possible.
        If the consumer is compute-bound, one core is reserved for it.
        """

    def describe_queue(self, start: float, stop: float) -> Mapping[str, float]:
        """Seconds by phase of tasks that kept a submitted call from running; none if only other such calls did."""

    def diagnose(self) -> tuple[str, float]:
        """Describe what the shard waits for, and return the seconds since the last progress."""

    def run_stats(self, *, spans: bool) -> RunStats:
        """Statistics of the job so far, for all shards; a `StallError` if the coordinator does not answer."""

    def close(self, stats: TrainerStats | None = None) -> None:
        """Disconnect the shard, and report what its consumer has received."""


class Session(Protocol):
    """A job for some shards, running or about to start."""

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect a shard; if the job has failed, restart it.

        Call it in the process that reads the shard. ``seed`` is the shard's seed, which differs from
        the program's if the shard was restored from a checkpoint. Raises a `StateError` if other shards of
        this session use another seed.
        """

    def run_stats(self, *, spans: bool) -> RunStats | None:
        """Statistics of the job for a process that has no shard connected; None if it cannot know them."""

    def export(self, shard: int) -> Session:
        """The session to pickle with one shard for another process."""

    def for_processes(self) -> Session:
        """A session that processes can use that this one forks or spawns on its node."""

    def for_workers(self, program: Program, shard: int) -> Session:
        """The session of worker processes that divide the shards, as ``program`` says.

        Call it in the worker that reads ``shard`` of that program.
        """


class Executor(Protocol):
    """Runs a program, in this process or on a cluster."""

    @property
    def name(self) -> str:
        """``"threads"``, ``"ray"``, ..."""

    def resources(self, launch: Launch = Launch()) -> Resources:
        """Resources for one of the processes that a launcher has started; has no side effects."""

    def session(self, program: Program, hints: Sequence[Any] | None) -> Session:
        """Create a session for the shards of a program; ``hints`` are locality hints, one per shard."""
