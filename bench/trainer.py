"""A trainer: takes batches as fast as possible, or trains on them, and records times.

The same class runs in the benchmark's process, in its threads, and in Ray actors.
Times are on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.agreement import agree_on_maximum
from bench.compute import Computing, slowed_share
from bench.exactly_once import KeyLog, SumLog
from bench.fingerprints import count_rows, fingerprint_rows
from bench.model import SmallModel
from bench.request import Request
from bench.spans import Span, SpanLog

__all__ = ["EpochTimes", "Progress", "Trainer", "TrainerResult"]

_REPORT_SECONDS = 0.5
_AGREE_SECONDS = 60.0
# makes the engine busy for half of the time on the cores that trainers leave free
_IDLE_FACTOR = 2.0

Progress = Callable[[int, int], None]
"""Called from time to time with the epoch and the number of its rows received so far."""


@dataclass
class EpochTimes:
    """One trainer's view of one epoch.

    ``wait_seconds`` is the total time between requesting and receiving batches, and
    ``step_seconds`` the time that the trainer spends on each. ``slowed`` is the relative slowdown of its
    computation by the engine, and ``coreless`` the part of it spent waiting for a core.
    """

    start: float
    first: float = 0.0
    end: float = 0.0
    wait_seconds: float = 0.0
    rows: int = 0
    batches: int = 0
    losses: list[float] = field(default_factory=list)
    step_seconds: float = 0.0
    slowed: float | None = None
    coreless: float | None = None


@dataclass
class TrainerResult:
    """Results of one trainer: times and keys or sums of each epoch, and spans for the timeline."""

    epochs: list[EpochTimes]
    arrived: Sequence[Any]
    spans: list[Span]


class Trainer:
    """Consumes epochs of batches of tensors, or of lists and strings.

    Parameters
    ----------
    request
        What is measured.
    lane
        The trainer's name in the timeline.
    progress
        Called at most twice a second.
    """

    def __init__(self, request: Request, lane: str, progress: Progress) -> None:
        capacity = -(-request.rows // request.trainers) + request.batch_size
        self._request = request
        self._key = request.key
        self._keys = KeyLog(_choose_dtype(request), capacity, request.epochs) if _logs_rows(request) else None
        self._sums = SumLog(request.sum_columns)
        self._model = _make_model(request)
        self._spans = SpanLog(lane)
        self._progress = progress
        self._reported = 0.0
        self._rank = 0
        self._step_seconds: float | None = None
        self._computing = Computing()
        self._computed_seconds = 0.0
        self._coreless_seconds = 0.0
        self._launch_seconds = 0.0

    def join(self, rank: int) -> None:
        """Join the process group of the other actors' trainers if they train together."""
        self._rank = rank
        if self._model is not None and self._request.rendezvous is not None and self._request.equal:
            # only shards of equal length can train in lockstep
            self._model.join(self._request.rendezvous, rank, self._request.trainers)

    def train(self, epochs: Iterable[Iterable[Mapping[str, Any]]]) -> TrainerResult:
        """Consume every batch of every epoch."""
        times: list[EpochTimes] = []
        requested = time.monotonic()
        for batches in epochs:
            step_seconds = self._choose_step(times)
            if self._request.computing and step_seconds:
                requested = time.monotonic()  # without the time in which it computed alone
            epoch = EpochTimes(requested, step_seconds=step_seconds)
            times.append(self._train_epoch(batches, epoch, len(times)))
            requested = times[-1].end
            if self._request.computing and step_seconds:
                self._measure_slowdown(epoch)
        arrived = self._keys.epochs() if self._keys is not None else self._sums.epochs()
        return TrainerResult(times, arrived, self._spans.spans())

    def _train_epoch(
        self, batches: Iterable[Mapping[str, Any]], times: EpochTimes, number: int
    ) -> EpochTimes:
        (self._keys or self._sums).open_epoch()
        requested = times.start
        for batch in batches:
            got = time.monotonic()
            times.first = times.first or got
            rows = self._take(batch, times, number)
            times.rows, times.batches = times.rows + rows, times.batches + 1
            times.wait_seconds += got - requested
            self._spend_step(got, times.step_seconds)
            done = time.monotonic()
            self._spans.add(number, requested, got, done)
            requested = done
            if done - self._reported > _REPORT_SECONDS:
                self._reported = done
                self._progress(number, times.rows)
        times.end = time.monotonic()
        times.wait_seconds += times.end - requested
        times.first = times.first or times.end
        return times

    def _choose_step(self, before: Sequence[EpochTimes]) -> float:
        """Seconds per step: the median time per batch of the steady epochs before trainers are paced.

        With several trainers, the slowest determines the pace.
        """
        request = self._request
        if not (request.paced or request.computing) or len(before) < request.paced_from:
            return 0.0
        if self._step_seconds is None:
            steady = before[1 : request.paced_from]
            own = statistics.median((one.end - one.start) / max(1, one.batches) for one in steady)
            self._step_seconds = own
            if request.rendezvous is not None:
                self._step_seconds = agree_on_maximum(
                    request.rendezvous, own, self._rank, request.trainers, _AGREE_SECONDS
                )
            if request.computing:
                self._step_seconds *= _IDLE_FACTOR * request.cores / max(1, request.cores - request.trainers)
                self._launch_seconds = self._computing.time_launch_alone()
        return self._step_seconds

    def _spend_step(self, got: float, step_seconds: float) -> None:
        if not step_seconds:
            return
        if self._request.computing:
            before = self._computing.core_wait()
            self._computed_seconds += self._computing.run(self._launches(step_seconds))
            self._coreless_seconds += self._computing.core_wait() - before
        else:
            time.sleep(max(0.0, got + step_seconds - time.monotonic()))

    def _launches(self, step_seconds: float) -> int:
        return max(1, round(step_seconds / self._launch_seconds))

    def _measure_slowdown(self, epoch: EpochTimes) -> None:
        """Compare the computation of the epoch with the same computation alone, before and after it."""
        launches = self._launches(epoch.step_seconds) * epoch.batches
        before, self._launch_seconds = self._launch_seconds, self._computing.time_launch_alone()
        alone = (before, self._launch_seconds)
        epoch.slowed = slowed_share(self._computed_seconds, launches, alone)
        with_cores = slowed_share(self._computed_seconds - self._coreless_seconds, launches, alone)
        epoch.coreless = epoch.slowed - with_cores
        self._computed_seconds = self._coreless_seconds = 0.0

    def _take(self, batch: Mapping[str, Any], times: EpochTimes, number: int) -> int:
        if self._keys is not None and self._request.content is not None:
            column = batch[self._request.content]
            rows = count_rows(column)
            if self._request.identifies(number):
                self._keys.add(fingerprint_rows(column))
        elif self._keys is not None and self._key is not None:
            keys = batch[self._key].numpy()
            self._keys.add(keys)
            rows = len(keys)
        else:
            self._sums.add({name: values.numpy() for name, values in batch.items()})
            rows = len(next(iter(batch.values())))
        if self._model is not None:
            times.losses.append(self._model.step(batch))
        return rows


def _logs_rows(request: Request) -> bool:
    """Whether each row can be identified, by its key or by its content."""
    return request.key is not None or request.content is not None


def _choose_dtype(request: Request) -> type[np.integer[Any]]:
    if request.content is not None:
        return np.uint64
    return np.uint32 if request.rows < 2**32 else np.int64


def _make_model(request: Request) -> SmallModel | None:
    if request.label is None:
        return None
    features = [name for name in request.tensor_columns if name not in (request.label, request.key)]
    numbers = [name for name in features if name not in request.categories]
    model = SmallModel(
        [name for name in features if name in request.categories], numbers, request.label, request.seed
    )
    model.warm_up()
    return model
