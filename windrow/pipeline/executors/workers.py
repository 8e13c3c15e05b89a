"""A thread pool with a priority queue, which can reserve cores for compute-bound consumers."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, TypeVar

from windrow.core.machine import available_cores

T = TypeVar("T")
_JOIN_SECONDS = 10.0
# A compute-bound consumer renews its reservation with each run; that of an idle or closed one expires.
_COMPUTING_SECONDS = 10.0


class WorkerPool:
    """A thread pool that runs calls by priority, then in the order of submission.

    The threads reference only the queue, not the pool, so an unreferenced pool can be garbage-collected,
    and its owner's finalizer can close it. They share ``cores`` with consumers, by default those of this process.
    """

    def __init__(self, workers: int, name: str, cores: int | None = None) -> None:
        self._queue = _Queue(workers, cores or available_cores())
        self._threads = [
            threading.Thread(target=_work, args=(self._queue,), name=f"{name}-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, priority: tuple[int, ...], call: Callable[[], T]) -> Future[T]:
        """Queue ``call``; the smallest priority runs first."""
        future: Future[T] = Future()
        self._queue.put(priority, future, call)
        return future

    def reserve_core(self, consumer: int, computes: bool) -> None:
        """Reserve a core for this consumer while it is compute-bound: fewer threads run meanwhile.

        Callers must renew the reservation; it expires after some seconds. At least one thread always runs.
        """
        self._queue.reserve_core(consumer, computes)

    def run_urgent(self, before: tuple[int, ...]) -> None:
        """Run in the calling thread all queued calls that are more urgent than ``before``."""
        while (work := self._queue.pop_before(before)) is not None:
            _run(*work)

    def close(self, seconds: float = _JOIN_SECONDS) -> None:
        """Cancel queued calls, and wait at most ``seconds`` for each running one."""
        self._queue.close()
        for thread in self._threads:
            if thread.ident != threading.get_ident():
                thread.join(seconds)


class _Queue:
    def __init__(self, workers: int, cores: int) -> None:
        self._workers, self._cores = workers, cores
        self._computing: dict[int, float] = {}
        self._busy = 0
        self._changed = threading.Condition()
        self._heap: list[tuple[tuple[int, ...], int, Future[Any], Callable[[], Any]]] = []
        self._sequence = count()
        self._closed = False

    def put(self, priority: tuple[int, ...], future: Future[Any], call: Callable[[], Any]) -> None:
        with self._changed:
            if self._closed:
                future.cancel()
                return
            heapq.heappush(self._heap, (priority, next(self._sequence), future, call))
            self._changed.notify()

    def pop(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._closed and (not self._heap or self._busy >= self._max_busy):
                self._changed.wait(_COMPUTING_SECONDS if self._heap else None)
            if self._closed:
                return None
            self._busy += 1
            _, _, future, call = heapq.heappop(self._heap)
            return future, call

    @property
    def _max_busy(self) -> int:
        if not self._computing:
            return self._workers
        now = time.monotonic()
        computing = sum(until > now for until in self._computing.values())
        return max(1, math.ceil(self._workers * (self._cores - computing) / self._cores))

    def done(self) -> None:
        # the calling thread takes the next call itself, so no other needs waking
        with self._changed:
            self._busy -= 1

    def reserve_core(self, consumer: int, computes: bool) -> None:
        if not computes and consumer not in self._computing:
            return
        with self._changed:
            if computes:
                self._computing[consumer] = time.monotonic() + _COMPUTING_SECONDS
            else:
                self._computing.pop(consumer, None)
                self._changed.notify_all()

    def pop_before(self, priority: tuple[int, ...]) -> tuple[Future[Any], Callable[[], Any]] | None:
        # called often, so check without the lock first: a call queued just now waits for the next check
        if not self._heap:
            return None
        with self._changed:
            if not self._heap or self._heap[0][0] >= priority:
                return None
            _, _, future, call = heapq.heappop(self._heap)
            return future, call

    def close(self) -> None:
        with self._changed:
            self._closed = True
            waiting, self._heap = self._heap, []
            self._changed.notify_all()
        for _, _, future, _ in waiting:
            future.cancel()


def _work(queue: _Queue) -> None:
    while (work := queue.pop()) is not None:
        _run(*work)
        # an idle thread must not keep the last call's data alive
        del work
        queue.done()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
