"""Moves a transform that holds the GIL from threads of this process to processes, unless the user has chosen.

A function holds the GIL if calls of it that run at the same time have one core together. If they compute without it,
they have more, and if they wait for something else, less.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from windrow.core.errors import PlanError
from windrow.pipeline.executors.processes.pool import ProcessWorkers
from windrow.pipeline.tasks.map_batches import Call, MapBatches, Result
from windrow.pipeline.tasks.transforms import call_function

logger = logging.getLogger(__name__)

# what is measured before anything is moved
_MIN_SECONDS, _MIN_CALLS = 3.0, 6
# cores that calls which run at the same time have together
_LEAST_CORES, _MOST_CORES = 0.75, 1.2


def may_move(stage: MapBatches) -> bool:
    """Whether the user leaves it to windrow where a transform runs, and other processes can import it.

    Objects of classes may be costly to make, or large.
    """
    if stage.compute is not None or stage.is_class or stage.only_drops:
        return False
    fn: Any = stage.fn
    while isinstance(fn, partial):
        fn = fn.func
    if getattr(fn, "__module__", "__main__") in ("__main__", "__mp_main__"):
        return False
    try:
        pickle.dumps(replace(stage, workers=None))
    except Exception:  # whatever a user's __reduce__ raises
        return False
    return True


class ChosenWorkers:
    """The threads that call a transform, or once it turns out to hold the GIL, processes; see `RemoteWorkers`."""

    def __init__(self, stage: MapBatches, most: int) -> None:
        self._stage = stage
        self._processes = most
        self._moved: ProcessWorkers | None = None
        self._meter = _CallMeter()
        self._lock = threading.Lock()
        self._is_closed = self._stays = False

    @property
    def most(self) -> int:
        """How many processes there are at most; 0 as long as threads of this process call it."""
        return 0 if self._moved is None else self._moved.most

    @property
    def moved(self) -> ProcessWorkers | None:
        """The processes, once it has been moved."""
        return self._moved

    @property
    def calls_together(self) -> int:
        """See `RemoteWorkers`."""
        return 1

    def start(self, calls: Sequence[Call]) -> list[Callable[[], Result]]:
        """See `RemoteWorkers`; in this process, calls run in the thread that waits for them."""
        return (
            [partial(self._run, call) for call in calls] if self._moved is None else self._moved.start(calls)
        )

    def _run(self, call: Call) -> Result:
        with self._stage.local_workers.instance() as fn, self._meter:
            result = call_function(self._stage, fn, call)
        if self._moved is None and not self._stays and self._meter.take_verdict():
            self._move()
        return result

    def _move(self) -> None:
        try:
            moved = ProcessWorkers(self._stage, (1, self._processes))
        except PlanError as error:
            # it could be pickled when the run was planned, and keeps something now that cannot
            self._stays = True
            logger.info("%s holds the GIL, and stays on threads: %s", self._stage.name, error)
            return
        with self._lock:
            # another thread may have moved it, or closed this object, while the function was pickled
            if self._moved is not None or self._is_closed:
                return
            self._moved = moved
        logger.info(
            "%s holds the GIL: up to %d processes run it from now on", self._stage.name, self._processes
        )

    def close(self) -> None:
        with self._lock:
            self._is_closed, moved = True, self._moved
        if moved is not None:
            moved.close()


class _CallMeter:
    """Measures how many cores calls have together that run at the same time in several threads; a context for each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_thread = threading.local()
        self._running = 0
        self._changed = time.monotonic()
        # seconds in which several calls ran, what these have computed meanwhile, and the number of calls
        self._shared = self._computed = 0.0
        self._calls = 0
        # the same at the last verdict
        self._before = (0.0, 0.0, 0)

    def __enter__(self) -> None:
        with self._lock:
            self._advance(+1)
            self._of_thread.began = time.thread_time(), time.monotonic(), self._shared

    def __exit__(self, *_: object) -> None:
        computed, began, shared = self._of_thread.began
        with self._lock:
            self._advance(-1)
            seconds = max(1e-9, time.monotonic() - began)
            self._computed += (time.thread_time() - computed) * min(1.0, (self._shared - shared) / seconds)
            self._calls += 1

    def _advance(self, calls: int) -> None:
        now = time.monotonic()
        if self._running > 1:
            self._shared += now - self._changed
        self._running += calls
        self._changed = now

    def take_verdict(self) -> bool:
        """Whether enough has been measured since the last time, and the calls hold the GIL."""
        with self._lock:
            shared, computed, calls = self._before
            if self._shared - shared < _MIN_SECONDS or self._calls - calls < _MIN_CALLS:
                return False
            cores = (self._computed - computed) / (self._shared - shared)
            self._before = self._shared, self._computed, self._calls
        return _LEAST_CORES <= cores <= _MOST_CORES
