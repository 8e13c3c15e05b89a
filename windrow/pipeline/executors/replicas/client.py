"""`ReplicaClient`: a replica's client of its host, in place of the coordinator's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError, StallError
from windrow.core.finalizers import in_background
from windrow.core.shared_batches import SharedMemory
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.delivery.wanted import EVERYTHING, Wanted
from windrow.pipeline.executors.base import Pace, WindowData
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.executors.replicas.replica_states import Opening
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.runs import Run

T = TypeVar("T")
# they wait for the host, and convert
_WORKERS = 2


class HostConnection:
    """The calls of `ReplicaHost` for one replica, whichever process the host is in."""

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Have the host answer a call."""
        raise NotImplementedError

    def open_epoch(self, opening: Opening, *, goes_on: bool = False) -> EpochFacts:
        return self._call("open_epoch", opening, goes_on=goes_on)

    def window(self, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        return self._call("window", epoch, window, stop)

    def open_run(self, key: Key, run: Run, stop: threading.Event) -> pa.RecordBatch | None:
        """Wait for the rows of a run, and map them; None if ``stop`` is set first."""
        raise NotImplementedError

    def release(self) -> None:
        self._call("release")

    def acknowledge(self, place: Place) -> None:
        self._call("acknowledge", place)

    def heartbeat(self, stats: TrainerStats, *, waits: bool = False) -> None:
        self._call("heartbeat", stats, waits=waits)

    def diagnose(self) -> tuple[str, float]:
        return self._call("diagnose")

    def run_stats(self, *, spans: bool) -> RunStats:
        return self._call("run_stats", spans=spans)

    def close(self, stats: TrainerStats | None) -> None:
        self._call("close", stats)


class DirectConnection(HostConnection):
    """A connection to a host in this process."""

    def __init__(self, host: ReplicaHost, replica: int) -> None:
        self._host, self._reader = host, host.connect(replica)
        self._memory = SharedMemory(host.pool.descriptor)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        call = getattr(self._host, name)
        # run_stats is the same for all replicas
        return call(**options) if name == "run_stats" else call(self._reader, *arguments, **options)

    def open_run(self, key: Key, run: Run, stop: threading.Event) -> pa.RecordBatch | None:
        shared = self._host.take(self._reader, key, run, stop)
        if shared is None:
            return None
        released = partial(self._host.released, self._reader, shared.number)
        return self._memory.open_batch(shared, released)


class PlacedOutputs:
    """Stands for the map outputs of a slice: the host has placed their rows, or will.

    ``dropped`` is called in another thread once nothing refers to it any more, so that no run of it can be wanted.
    """

    def __init__(
        self,
        connection: HostConnection,
        key: Key,
        wanted: Wanted,
        stop: threading.Event,
        dropped: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._key = key
        self._wanted = wanted
        self._stop = stop
        self._dropped = dropped
        self._lock = threading.Lock()
        # by index: runs of which portions are still to be taken
        self._begun: dict[int, _BegunRun] = {}

    def __del__(self) -> None:
        in_background(self._dropped)

    def take(self, run: Run, rows: slice) -> pa.RecordBatch:
        """Wait for some rows of a run, of which the portions are taken in order, but may be at once."""
        with self._lock:
            begun = self._begun.setdefault(run.index, _BegunRun())
            if rows.stop >= run.rows:
                # no portion comes after this one
                del self._begun[run.index]
        with begun.lock:
            if begun.rows is None:
                begun.rows = self._open(run)
            return begun.rows.slice(rows.start, rows.stop - rows.start)

    def _open(self, run: Run) -> pa.RecordBatch:
        rows = self._connection.open_run(self._key, run, self._stop)
        if rows is None:
            raise PlanError("the shard was closed while its rows were being placed")
        # what the host holds can be more, and change
        return self._wanted.narrow(rows)


@dataclass
class _BegunRun:
    """A run whose portions are being taken; its rows once the first of them is."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: pa.RecordBatch | None = None


class _Progress:
    """Acknowledges to the host what a shard has acknowledged, up to the first slice that runs are still wanted of.

    To a coordinator, a shard acknowledges windows whose map outputs it holds. The host holds them for it.
    """

    def __init__(self, connection: HostConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        # how often each slice is held: also by runs submitted before it was fetched again
        self._held: Counter[Place] = Counter()
        self._acknowledged = self._told = Place(0, 0)

    def begin(self, place: Place) -> Callable[[], None]:
        """Note that a slice is held; returns what to call once it is not."""
        with self._lock:
            self._held[place] += 1
        return partial(self._end, place)

    def _end(self, place: Place) -> None:
        with self._lock:
            self._held[place] -= 1
            if not self._held[place]:
                del self._held[place]
        self._tell()

    def acknowledge(self, place: Place) -> None:
        """The replica needs nothing before a place any more."""
        with self._lock:
            self._acknowledged = max(self._acknowledged, place)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            place = min(self._acknowledged, *self._held) if self._held else self._acknowledged
            if place <= self._told:
                return
            self._told = place
        # the host takes the latest of places that overtake each other
        with suppress(StallError):
            self._connection.acknowledge(place)


class ReplicaClient:
    """One replica's client of its host; the methods are those of `CoordinatorClient`."""

    def __init__(self, connection: HostConnection, shard: int, name: str) -> None:
        self._connection = connection
        self.pool = BufferPool(0)
        self._workers_name, self._waiting_runs = f"windrow-replica-{shard}-{name}", _WORKERS
        self._workers = WorkerPool(self._waiting_runs, self._workers_name)
        self._progress = _Progress(connection)
        self._wanted = EVERYTHING

    @property
    def after(self) -> tuple[MapBatches, ...]:
        """None: the host applies transforms, and those behind packing run in this process."""
        return ()

    def want(self, wanted: Wanted) -> None:
        self._wanted = wanted

    def open_epoch(self, cursor: Cursor, batching: Batching) -> EpochFacts:
        self._progress = _Progress(self._connection)
        facts = self._connection.open_epoch(Opening(cursor, batching, self._wanted))
        if facts.calls_ahead > self._waiting_runs:
            # as many threads wait for the host as it has runs in preparation
            self._workers.close(0.0)
            self._waiting_runs = facts.calls_ahead
            self._workers = WorkerPool(self._waiting_runs, self._workers_name)
        return facts

    def open_next(self, cursor: Cursor, batching: Batching) -> Future[EpochFacts]:
        """Open the next epoch, which the host answers at once."""
        opened: Future[EpochFacts] = Future()
        try:
            opening = Opening(cursor, batching, self._wanted)
            opened.set_result(self._connection.open_epoch(opening, goes_on=True))
        except Exception as error:
            opened.set_exception(error)
        return opened

    def begin_prefetch(self) -> None:
        """Do nothing: the host's threads do the work."""

    def window(self, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        data = self._connection.window(epoch, window, stop)
        if data is not None:
            progress, key = self._progress, (epoch, window)
            data.slices = [
                PlacedOutputs(
                    self._connection, key, self._wanted, stop, progress.begin(Place(*key, slice=number))
                )
                for number in range(len(data.slices))
            ]
        return data

    def release(self, stop: threading.Event) -> None:
        if not stop.is_set():
            self._connection.release()

    def acknowledge(self, place: Place) -> None:
        self._progress.acknowledge(place)

    def heartbeat(self, *stats: TrainerStats, waits: bool = False) -> None:
        for each in stats:
            self._connection.heartbeat(each, waits=waits)

    def note_delivered(self, row_bytes: float) -> None:
        """Do nothing: transforms run in the host."""

    def submit(self, place: Callable[[], T], pace: Pace) -> Future[T]:
        return self._workers.submit((), place)

    def describe_queue(self, start: float, stop: float) -> Mapping[str, float]:
        """Return nothing: tasks do not run on these threads."""
        return {}

    def diagnose(self) -> tuple[str, float]:
        return self._connection.diagnose()

    def run_stats(self, *, spans: bool) -> RunStats:
        return self._connection.run_stats(spans=spans)

    def close(self, stats: TrainerStats | None = None) -> None:
        self._connection.close(stats)
        self._workers.close()
