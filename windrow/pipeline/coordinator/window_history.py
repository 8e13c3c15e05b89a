"""Records when the tasks of each window waited and ran, and tells what the time until it was ready went to."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from windrow.core.native_libraries import missing_libraries
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.coordinator.source_history import SourceHistory
from windrow.pipeline.statistics.phases import (
    CPUS,
    MEMORY,
    SHUFFLE,
    START,
    Interval,
    Span,
    TaskProfile,
    TrainerStats,
    scale_to,
)
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.task import Work

logger = logging.getLogger(__name__)

_MAX_SPANS = 20_000
# the latest tasks, of which those of other windows count as running beside those of a window
_RECENT_TASKS = 256
# intervals that the production of a window is described by
_INTERVALS = 8
_EDGES = np.arange(_INTERVALS + 1.0)
# what a task takes to start although a CPU is free
_START_SECONDS = 0.02


@dataclass(frozen=True)
class Capacity:
    """How many tasks of a run can be executed at once, on how many machines."""

    workers: int
    nodes: int = 1


@dataclass(frozen=True)
class TaskTimes:
    """When a task was submitted, began and ended, and what it did; Unix times in seconds."""

    submitted: float
    start: float
    stop: float
    profile: TaskProfile


class Production(Sequence[Interval]):
    """What the time until a window was complete went to: intervals, computed when they are first read or pickled.

    On threads that is when waits are divided, so that a window that has just become complete is not delayed by it.

    >>> production = Production(lambda: (Interval(0.0, 1.0, {"decode": 1.0}),))
    >>> len(production), production[0].phases
    (1, {'decode': 1.0})
    """

    def __init__(self, compute: Callable[[], tuple[Interval, ...]]) -> None:
        self._compute = compute
        self._intervals: tuple[Interval, ...] | None = None

    def _read(self) -> tuple[Interval, ...]:
        # several shards of a process may be the first
        compute, found = self._compute, self._intervals
        if found is None:
            found = self._intervals = compute()
            self._compute = tuple
        return found

    @overload
    def __getitem__(self, at: int) -> Interval: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Interval, ...]: ...
    def __getitem__(self, at: Any) -> Any:
        return self._read()[at]

    def __iter__(self) -> Iterator[Interval]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._read(),)


class WindowHistory:
    """The tasks of the windows that are held, the spans of all tasks, and the sum of their profiles.

    Unless the run is ``profiled``, it only counts tasks and keeps what trainers report.
    """

    def __init__(
        self,
        capacity: Capacity,
        unix_clock: Callable[[], float] = time.time,
        *,
        profiled: bool = True,
        sources: SourceHistory | None = None,
    ) -> None:
        self.capacity = capacity
        self._sources = sources
        self._profiled = profiled
        self.spans: deque[Span] = deque(maxlen=_MAX_SPANS)
        self._profile = TaskProfile()
        # profiles that are not part of the sum yet
        self._profiles: list[TaskProfile] = []
        self.tasks = 0
        self._now = unix_clock
        self._submitted: dict[Work, float] = {}
        self._times: dict[Key, list[TaskTimes]] = {}
        self._recent: deque[tuple[Key, float, float]] = deque(maxlen=_RECENT_TASKS)
        self._first_start: float | None = None
        # by window: seconds in which it could not use all workers for lack of memory
        self._blocked: dict[Key, float] = {}
        self._blocked_now: Key | None = None
        self._blocked_since = self._idle_share = 0.0
        # windows that are prepared once more
        self._rebuilt: set[Key] = set()
        self._described: dict[Key, Production] = {}
        self._trainer_spans: deque[Span] = deque(maxlen=_MAX_SPANS)
        # by shard and replica: the latest report
        self._trainers: dict[tuple[int, int, str], TrainerStats] = {}

    def run_stats(self, *, spans: bool) -> RunStats:
        """What the history contributes to the statistics of the run."""
        trainers = tuple(self._trainers[key] for key in sorted(self._trainers))
        return RunStats(
            tasks=self.tasks,
            profile=self._sum_profiles(),
            workers=self.capacity.workers,
            nodes=self.capacity.nodes,
            trainers=trainers,
            sources=() if self._sources is None else self._sources.runs(trainers),
            spans=tuple(self.spans) if spans else (),
            trainer_spans=tuple(self._trainer_spans) if spans else (),
            missing_libraries=missing_libraries(),
        )

    def note_trainer(self, stats: TrainerStats) -> None:
        """Note what a shard's consumer has received, unless a later report has already told that."""
        # of spans, each report has its own
        self._trainer_spans += stats.spans
        if self._sources is not None:
            self._sources.note_waits(stats.spans)
        latest = self._trainers.get(stats.key)
        if latest is None or latest.sent <= stats.sent:
            self._trainers[stats.key] = replace(stats, spans=())

    def submit(self, work: Work) -> None:
        """Note that a task has been handed to the executor."""
        if self._profiled:
            self._submitted[work] = self._now()

    def finish(
        self, work: Work, kind: str, start: float, stop: float, profile: TaskProfile, lane: str
    ) -> None:
        """Note that a task has ended."""
        self.tasks += 1
        if not self._profiled:
            return
        self._profiles.append(profile)
        if len(self._profiles) >= _RECENT_TASKS:
            self._sum_profiles()
        submitted = self._submitted.pop(work, None)
        is_current, submitted = submitted is not None, min(start, submitted or start)
        key, phases = (work.epoch, work.window), tuple(profile.phases.items())
        source = "" if self._sources is None else self._sources.finish(key, start, stop)
        self.spans.append(Span(kind, *key, start, stop, lane, submitted, phases, source))
        self._recent.append((key, start, stop))
        if self._first_start is None:
            self._first_start = start
        if is_current:
            self._times.setdefault(key, []).append(TaskTimes(submitted, start, stop, profile))

    def _sum_profiles(self) -> TaskProfile:
        self._profile, self._profiles = TaskProfile.sum([self._profile, *self._profiles]), []
        return self._profile

    def note_memory(self, key: Key | None, running: int) -> None:
        """Note which window cannot start a task for lack of memory, None for none, and how many tasks run."""
        if not self._profiled or (key is None and self._blocked_now is None):
            return
        now = self._now()
        if self._blocked_now is not None:
            seconds = (now - self._blocked_since) * self._idle_share
            self._blocked[self._blocked_now] = self._blocked.get(self._blocked_now, 0.0) + seconds
        self._blocked_now, self._blocked_since = key, now
        self._idle_share = max(0.0, 1 - running / self.capacity.workers)

    def drop(self, key: Key, *, rebuild: bool) -> None:
        """Forget a window; with ``rebuild``, the time until it is ready again is lost to memory."""
        # results of its running tasks come too late
        for work in [work for work in self._submitted if (work.epoch, work.window) == key]:
            del self._submitted[work]
        self._times.pop(key, None)
        self._described.pop(key, None)
        self._blocked.pop(key, None)
        if self._blocked_now == key:
            self._blocked_now = None
        self._rebuilt.discard(key)
        if rebuild:
            logger.info("epoch %d, window %d is dropped, since other windows need its memory", *key)
            self._rebuilt.add(key)

    def describe_tasks(self, start: float, stop: float) -> dict[str, float]:
        """Seconds by phase of the tasks that ran in a period and have ended."""
        found: dict[str, float] = {}
        for span in reversed(self.spans):
            # tasks of about the same time are next to each other
            if span.stop_time < start:
                break
            begin, end = span.start_time, span.stop_time
            if begin < stop:
                seconds = (end if end < stop else stop) - (begin if begin > start else start)
                for name, share in scale_to(seconds, dict(span.phases), SHUFFLE).items():
                    found[name] = found[name] + share if name in found else share
        return found

    def describe(self, keys: Sequence[Key]) -> Sequence[Interval]:
        """What the time until some windows were complete went to: that of the last one, from its first task on."""
        if not self._profiled or not keys:
            return ()
        key = keys[0]
        if len(keys) > 1:
            key = max(keys, key=self._last_stop)
        if key not in self._described:
            self._described[key] = Production(
                partial(
                    describe_production,
                    key,
                    tuple(self._times.get(key, ())),
                    tuple(self._recent),
                    capacity=self.capacity,
                    first_start=self._first_start or 0.0,
                    blocked_seconds=self._blocked.get(key, 0.0),
                    rebuilt=key in self._rebuilt,
                )
            )
        return self._described[key]

    def _last_stop(self, key: Key) -> float:
        return max((task.stop for task in self._times.get(key, ())), default=0.0)


def describe_production(
    key: Key,
    tasks: Sequence[TaskTimes],
    recent: Sequence[tuple[Key, float, float]],
    *,
    capacity: Capacity,
    first_start: float = 0.0,
    blocked_seconds: float = 0.0,
    rebuilt: bool = False,
) -> tuple[Interval, ...]:
    """What the time went to in which the tasks of a window waited and ran, as consecutive intervals.

    ``recent`` has when tasks of this window and of others began and ended. Waiting before ``first_start``, when the
    first task of the run began, counts as the start. With more memory, the window would have been complete
    ``blocked_seconds`` earlier: the trainer's wait ends when it is complete, so this is the last part of it.
    ``rebuilt``: the window had been dropped for lack of memory.
    """
    if not tasks:
        return ()
    begin, end = min(task.submitted for task in tasks), max(task.stop for task in tasks)
    if end <= begin:
        return ()
    names, shares = _tabulate(tasks)
    edges = begin + (end - begin) / _INTERVALS * _EDGES
    starts, stops = np.array([(task.start, task.stop) for task in tasks]).T
    work = _overlaps(edges, starts, stops)
    # not a matrix product: with a core to spare, a thread of BLAS spins for a while after each
    by_phase = (work[:, :, None] * shares).sum(axis=1)
    all_phases = ((stops - starts)[:, None] * shares).sum(axis=0).tolist()
    without_memory = begin if rebuilt else max(begin, end - blocked_seconds)
    others = [(start, stop) for other, start, stop in recent if other != key]
    with_cpus = without_memory - _lost_to_cpus(tasks, others, capacity, max(begin, first_start))
    step = (end - begin) / _INTERVALS
    intervals = []
    for (start, stop), found in zip(pairwise(edges.tolist()), by_phase.tolist(), strict=True):
        # most of it decides, which is exact enough for intervals this short
        middle = (start + stop) / 2
        if middle >= without_memory:
            phases = {MEMORY: step}
        elif middle <= first_start:
            phases = {START: step}
        elif middle >= with_cpus:
            phases = {CPUS: step}
        else:
            spent = found if any(found) else all_phases
            phases = scale_to(step, dict(zip(names, spent, strict=True)), SHUFFLE)
        intervals.append(Interval(start, stop, phases))
    return tuple(intervals)


def _lost_to_cpus(
    tasks: Sequence[TaskTimes], others: Sequence[tuple[float, float]], capacity: Capacity, begin: float
) -> float:
    """How much earlier the tasks would have ended if all workers had been there, while some of them were queued."""
    end = max([task.stop for task in tasks])
    busy = 0.0
    for start, stop in [*others, *[(task.start, task.stop) for task in tasks]]:
        # comparisons cost a tenth of calls of min and max, and there are hundreds of spans
        seconds = (stop if stop < end else end) - (start if start > begin else begin)
        busy += seconds if seconds > 0 else 0.0
    # neither sooner than its longest task, nor than all workers can do what was done meanwhile
    ideal = max(busy / capacity.workers, max([task.stop - task.start for task in tasks]))
    queued_until = max(
        [task.start for task in tasks if task.start - task.submitted > _START_SECONDS], default=begin
    )
    return max(0.0, min(end - begin - ideal, queued_until - begin))


def _tabulate(tasks: Sequence[TaskTimes]) -> tuple[list[str], NDArray[np.float64]]:
    """The phases that occur, and (tasks, phases) the share of each task's time that it spent in each."""
    profiles = [task.profile for task in tasks]
    names = list(dict.fromkeys(name for profile in profiles for name in profile.phases)) or [SHUFFLE]
    seconds = np.array([[profile.phases.get(name, 0.0) for name in names] for profile in profiles])
    return names, seconds / np.maximum(seconds.sum(axis=1, keepdims=True), 1e-12)


def _overlaps(
    edges: NDArray[np.float64], starts: NDArray[np.float64], stops: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(intervals, n) seconds of each period that lie in each interval between two edges."""
    lengths = np.minimum(stops[None], edges[1:, None]) - np.maximum(starts[None], edges[:-1, None])
    return np.maximum(lengths, 0.0)
