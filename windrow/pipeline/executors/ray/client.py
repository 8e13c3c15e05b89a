"""A shard's client of the Ray coordinator."""

from __future__ import annotations

import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import ray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError
from windrow.core.finalizers import in_background
from windrow.core.machine import available_cores
from windrow.core.system.processes import use_batch_scheduling
from windrow.io.storage.retries import call_ahead
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import EpochFacts, OpenRequest
from windrow.pipeline.delivery.wanted import EVERYTHING, Wanted
from windrow.pipeline.executors.base import Pace, Waiting, WindowData, waiting_of
from windrow.pipeline.executors.ray.cluster import this_node
from windrow.pipeline.executors.ray.coordinator_calls import (
    POLL_SECONDS,
    PendingCalls,
    await_answer,
    get_run_stats,
    notify,
)
from windrow.pipeline.executors.ray.fetch_thread import Fetcher
from windrow.pipeline.executors.ray.narrowed_objects import Narrower
from windrow.pipeline.executors.ray.pool_calls import RayWorkers
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.memory_budget import RUNS_AHEAD
from windrow.pipeline.plan.program import RUN_BYTES, Program
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.batching import Batching

T = TypeVar("T")
_PLACERS = 2
_ANSWER_SECONDS = 60.0


class RayClient:
    """One shard's client of the coordinator; the methods are those of `CoordinatorClient`."""

    def __init__(
        self,
        coordinator: Any,
        program: Program,
        shard: int,
        batch_rows: int,
        seed: int | None,
        client: int,
    ) -> None:
        self._coordinator = coordinator
        self._job = program.job
        # to the coordinator; on several nodes that read the shard for its replicas, another one on each
        self._shard, self._who = client, f"shard {shard}"
        self._placed_shard = shard
        self._seed = seed
        self._waiting = waiting_of(program.job.options)
        self._token, self._since = uuid.uuid4().hex, time.time()
        self._open_count = 0
        self._acknowledged = Place(0, 0)
        self._closed = False
        # the latest heartbeat; shards of a mixture check its reply
        self._heartbeat: Any = None
        self._pending_calls = PendingCalls()
        self.pool = BufferPool(
            RUNS_AHEAD * max(RUN_BYTES, program.batch_rows(batch_rows) * program.estimate.row_bytes)
        )
        # several shards on one machine share its cores
        placers = max(1, min(_PLACERS, available_cores() // program.shards))
        self._workers = WorkerPool(placers, f"windrow-place-{shard}")
        self._finalizer = weakref.finalize(self, in_background, self._workers.close)
        self._fetcher: Fetcher | None = None
        self._wanted = EVERYTHING
        self._narrower = Narrower(coordinator)

    @property
    def after(self) -> tuple[MapBatches, ...]:
        """The transforms after the shuffle, with the pools that the coordinator has started."""
        stages = self._job.after
        if all(stage.pool is None for stage in stages):
            return stages
        found = list(stages)
        for at, workers in enumerate(self._ask_workers()):
            if workers is not None:
                lasting = replace(workers, find_next=partial(self._find_workers, at))
                found[at] = replace(stages[at], workers=lasting)
        return tuple(found)

    def _ask_workers(self) -> tuple[RayWorkers | None, ...]:
        answer = self._coordinator.workers_after.remote()
        return await_answer(answer, self._who, self._waiting)

    def _find_workers(self, number: int) -> RayWorkers:
        found = self._ask_workers()[number]
        assert found is not None, "a transform keeps its pool"
        return found

    def want(self, wanted: Wanted) -> None:
        self._wanted = wanted
        fetcher = self._fetcher
        if fetcher is not None:
            fetcher.want(wanted)

    def open_epoch(self, cursor: Cursor, batching: Batching) -> EpochFacts:
        """Open an epoch, and start to fetch its first window."""
        self._stop_fetching()
        if Place(cursor.epoch, cursor.window) < self._acknowledged:
            # the shard moves back, and acknowledgements can still be under way: they are an earlier reader's
            self._token, self._since = uuid.uuid4().hex, time.time()
            self._acknowledged = Place(0, 0)
        request = self._request(cursor, batching, goes_on=False)
        answer = self._coordinator.open_epoch.remote(request)
        self._pending_calls.add(answer)
        facts: EpochFacts = await_answer(answer, self._who, self._waiting)
        self._pending_calls.remove(answer)
        leads_on = self._job.leads_on(cursor.epoch)
        self._fetcher = Fetcher(
            self._coordinator,
            request,
            facts,
            self._pending_calls,
            shard=self._placed_shard,
            leads_on=leads_on,
            wanted=self._wanted,
            narrower=self._narrower,
        )
        if self._closed:
            # another thread called close() before there was a fetcher to stop
            self._stop_fetching()
            raise self._make_closed_error(cursor)
        return facts

    def open_next(self, cursor: Cursor, batching: Batching) -> Future[EpochFacts]:
        """Open the next epoch; a thread waits for the answer."""
        fetcher = self._fetcher
        if fetcher is None:
            raise self._make_closed_error(cursor)
        request = self._request(cursor, batching, goes_on=True)
        answer = self._coordinator.open_epoch.remote(request)
        self._pending_calls.add(answer)
        fetcher.open_next_epoch(request, leads_on=self._job.leads_on(cursor.epoch))
        (opened,) = call_ahead(
            [partial(await_answer, answer, self._who, self._waiting)], 1, f"windrow-open-{self._shard}"
        )
        return opened

    def _make_closed_error(self, cursor: Cursor) -> PlanError:
        return PlanError(f"{self._who} was closed while epoch {cursor.epoch} was being opened")

    def _request(self, cursor: Cursor, batching: Batching, *, goes_on: bool) -> OpenRequest:
        number, self._open_count = self._open_count, self._open_count + 1
        return OpenRequest(
            shard=self._shard,
            node=this_node(),
            token=self._token,
            since=self._since,
            number=number,
            cursor=cursor,
            batching=batching,
            goes_on=goes_on,
            seed=self._seed,
        )

    def begin_prefetch(self) -> None:
        """Keep this thread from preempting the consumer that wakes it; tasks have lower priority than both."""
        use_batch_scheduling()

    def window(self, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        fetcher = self._fetcher
        return None if fetcher is None else fetcher.take((epoch, window), stop)

    def release(self, stop: threading.Event) -> None:
        """Release fetched windows, and fetch nothing until a window is requested."""
        fetcher = self._fetcher
        if fetcher is not None:
            fetcher.release(stop)

    def acknowledge(self, place: Place) -> None:
        self._acknowledged = max(self._acknowledged, place)
        fetcher = self._fetcher
        if fetcher is None:
            notify(self._coordinator.acknowledge, self._shard, self._token, place)
        else:
            fetcher.acknowledge(place)

    def heartbeat(self, *stats: TrainerStats, waits: bool = False) -> None:
        if self._job.mixture is not None:
            self._raise_reply(0.0)
        self._heartbeat = notify(self._coordinator.heartbeat, self._shard, *stats)
        if waits and self._job.mixture is not None:
            self._raise_reply(_ANSWER_SECONDS)

    def _raise_reply(self, seconds: float) -> None:
        """Raise the error with which the coordinator has answered the last heartbeat, if any."""
        if self._heartbeat is None or not ray.is_initialized():
            return
        ready, _ = ray.wait([self._heartbeat], timeout=seconds)
        failure: Failure | None = None
        # a coordinator that has ended is noticed elsewhere
        with suppress(ray.exceptions.RayError):
            failure = ray.get(self._heartbeat) if ready else None
        if failure is not None:
            failure.rethrow()

    def note_delivered(self, row_bytes: float) -> None:
        notify(self._coordinator.note_delivered, row_bytes)

    def submit(self, place: Callable[[], T], pace: Pace) -> Future[T]:
        """Place a run's rows in this process."""
        self._workers.reserve_core(self._shard, pace.computes)
        return self._workers.submit((), place)

    def describe_queue(self, start: float, stop: float) -> Mapping[str, float]:
        """Return nothing: tasks do not run on these threads."""
        return {}

    def diagnose(self) -> tuple[str, float]:
        try:
            answer: tuple[str, float] = ray.get(
                self._coordinator.diagnose.remote(self._shard), timeout=_ANSWER_SECONDS
            )
        except ray.exceptions.RayError as error:
            return f"the coordinator does not answer: {type(error).__name__}", float("inf")
        return answer

    def run_stats(self, *, spans: bool) -> RunStats:
        return get_run_stats(self._coordinator, self._who, spans=spans)

    def close(self, stats: TrainerStats | None = None) -> None:
        self._closed = True
        fetcher, self._fetcher = self._fetcher, None
        # the callbacks run last to first, each even if another raises
        with ExitStack() as calls:
            calls.callback(self._finalizer.detach)
            calls.callback(self._workers.close)
            if fetcher is not None:
                calls.callback(fetcher.join)
            calls.callback(self._notify_closed, stats)
            if fetcher is not None:
                calls.callback(fetcher.stop)

    def _notify_closed(self, stats: TrainerStats | None) -> None:
        closed = notify(self._coordinator.close_shard, self._shard, self._token, stats)
        if self._job.cache == "disk" and closed is not None:
            # the last shard to close removes the cache files; exiting now would prevent that
            ray.wait([closed], timeout=_ANSWER_SECONDS)
        if closed is not None and not self._pending_calls.await_answers(0.0):
            close_again = partial(notify, self._coordinator.close_shard, self._shard, self._token)
            thread = threading.Thread(
                target=_call_once_answered, args=(self._pending_calls, close_again), daemon=True
            )
            # no thread can start while the process exits, which ends its pending calls too
            with suppress(RuntimeError):
                thread.start()

    def _stop_fetching(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.stop()


def _call_once_answered(pending_calls: PendingCalls, call: Callable[[], object]) -> None:
    """Close the shard again once its calls are answered.

    Ray replays unanswered calls to a restarted coordinator, but not the answered ``close_shard``.
    """
    # ray.shutdown() can come in between, and ends the coordinator too
    with suppress(Exception):
        for _ in range(int(Waiting().fail_seconds / POLL_SECONDS)):
            if pending_calls.await_answers(POLL_SECONDS):
                call()
                return
