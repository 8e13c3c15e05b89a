"""The executor interface: everything that differs between running in one process and on a cluster.

Beside it stand the values with which consumers use one: their pace, and how long they wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol, TypeVar

from windrow.core.buffer_pool import BufferPool
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.delivery.wanted import EVERYTHING, Wanted
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.job import Launch, Options, Resources
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.phases import Interval, TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.step_runs import StepRuns

# moving average over about eight runs; a wait counts as at most this multiple of the work
_PACE_WEIGHT, _MAX_WAIT_RATIO = 1 / 8, 2
_COMPUTES_SHARE = 0.9
# NCCL ends a process after 600 s by default. Failing earlier names the cause on the rank that has it.
_DISTRIBUTED_FAIL_SECONDS = 540.0
T = TypeVar("T")


class Pace:
    """Whether the consumer mostly works or mostly waits, as moving averages.

    Prioritizing a consumer that only waits would just delay the next window. In the first window that does
    not matter: the sooner it is consumed, the sooner two windows can alternate.
    """

    def __init__(self) -> None:
        self._has_started = False
        self._worked = self._waited = self._computed = 0.0
        self._run_worked = self._run_waited = self._run_computed = 0.0

    def add(self, *, worked: float, waited: float, computed: float = 0.0) -> None:
        """Add the seconds that the consumer worked on a batch, was on a core, and waited for the next batch."""
        self._run_worked += worked
        self._run_waited += waited
        self._run_computed += computed

    def end_run(self) -> None:
        """Update the averages: all batches of a run have been taken."""
        worked, waited, computed = self._run_worked, self._run_waited, self._run_computed
        self._run_worked = self._run_waited = self._run_computed = 0.0
        self._worked += (worked - self._worked) * _PACE_WEIGHT
        self._computed += (computed - self._computed) * _PACE_WEIGHT
        # one long wait, such as that for the first window, does not characterize the consumer
        waited = min(waited, _MAX_WAIT_RATIO * self._worked)
        self._waited += (waited - self._waited) * _PACE_WEIGHT

    def begin(self) -> None:
        """Note that all runs of a window have been submitted."""
        self._has_started = True

    @property
    def works(self) -> bool:
        """Whether the consumer recently worked most of the time; assumed until the first window is submitted."""
        return not self._has_started or self._worked > 2 * self._waited

    @property
    def computes(self) -> bool:
        """Whether the consumer recently kept a core busy nearly all the time, and so hardly waited."""
        return self._computed > _COMPUTES_SHARE * (self._worked + self._waited)


@dataclass(frozen=True)
class Waiting:
    """Seconds that a consumer waits before it warns, and before it raises `StallError`."""

    warn_seconds: float = 60.0
    fail_seconds: float = 1800.0


def waiting_of(options: Options) -> Waiting:
    """The timeouts of a job in this process: ``stall_timeout``, or defaults that know torch.distributed."""
    waiting = Waiting()
    fail_seconds = options.stall_timeout
    if fail_seconds is None:
        fail_seconds = _DISTRIBUTED_FAIL_SECONDS if is_distributed() else waiting.fail_seconds
    return Waiting(min(waiting.warn_seconds, fail_seconds / 2), fail_seconds)


def is_distributed() -> bool:
    """Whether this process has initialised torch.distributed; does not import torch."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


@dataclass
class WindowData:
    """The map outputs of one window on the way to one shard."""

    # the runs; None when the window has no blocks
    layout: WindowRuns | StepRuns | None
    # the map outputs of each slice; slices are cleared as they are consumed
    # of a replica: what stands for rows that its host has placed
    slices: list[Any]
    # so far, one line each
    user_warnings: Sequence[str] = ()
    # the rest as in `WindowReply`
    starts: Sequence[tuple[int, int]] = ()
    corrupt: Sequence[int] = ()
    row_bytes: float = 0.0
    history: Sequence[Interval] = ()
    # when map outputs were on their way to this process, parts of its history
    transfers: Sequence[Interval] = ()
    # what the map outputs may be narrowed to
    wanted: Wanted = EVERYTHING


class CoordinatorClient(Protocol):
    """One shard's client of the coordinator."""

    @property
    def pool(self) -> BufferPool:
        """Memory for runs."""

    @property
    def after(self) -> tuple[MapBatches, ...]:
        """The transforms after the shuffle, with the workers of those that run in other processes.

        They are the same from `open_epoch` to the next call of it.
        """

    def want(self, wanted: Wanted) -> None:
        """Say what the consumer takes of each row, of windows that it requests from now on; before: everything.

        Nothing else need be fetched. Windows that were requested before are fetched again.
        """

    def open_epoch(self, cursor: Cursor, batching: Batching) -> EpochFacts:
        """Open an epoch at ``cursor``."""

    def open_next(self, cursor: Cursor, batching: Batching) -> Future[EpochFacts]:
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

    def heartbeat(self, *stats: TrainerStats, waits: bool = False) -> None:
        """Report that the consumer is alive: it takes rows or waits for them, and what it has received.

        A shard with replicas reports what each of some of them has received. Raises a StateError if a change of a
        mixture's shares was missed, here or by another shard. With ``waits``, it waits for the coordinator's answer.
        """

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
        """The session to pickle with one shard for another process: this one, where any process can use it."""
        return self

    def for_processes(self) -> Session:
        """A session that processes can use that this one forks or spawns on its node."""
        return self

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
