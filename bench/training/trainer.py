"""A trainer: takes batches as fast as possible, or trains on them, and records times.

The same class runs in the benchmark's process, in its threads, and in Ray actors.
Times are on the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bench.training.delivered_rows import KeyLog, count_rows, fingerprint_rows
from bench.training.model import SmallModel
from bench.training.request import Request

_AGREE_SECONDS = 60.0
# makes the engine busy for half of the time on the cores that trainers leave free
_IDLE_FACTOR = 2.0

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_SIDE = 256
_SETTLE_SECONDS = 1.5
_ALONE_SECONDS = 1.0
_LAUNCHES = 64


@dataclass
class EpochTimes:
    """One trainer's view of one epoch; ``coreless`` is the part of ``slowed`` spent waiting for a core."""

    start: float
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
    """Results of one trainer: times and rows of each epoch, and the map tasks of all of them, where it knows these."""

    epochs: list[EpochTimes]
    arrived: Sequence[Any]
    tasks: int = 0


class Trainer:
    """Consumes epochs of batches of tensors, or of lists and strings."""

    def __init__(self, request: Request) -> None:
        capacity = -(-request.rows // request.trainers) + request.batch_size
        self._request = request
        self._keys = KeyLog(_choose_dtype(request), capacity, request.epochs)
        self._model = _make_model(request)
        self._rank = 0
        self._step_seconds: float | None = None
        self._computing = Computing()
        self._computed_seconds = 0.0
        self._coreless_seconds = 0.0
        self._launch_seconds = 0.0

    def join(self, rank: int) -> None:
        self._rank = rank
        if self._model is not None and self._request.rendezvous is not None and self._request.equal:
            # only shards of equal length can train in lockstep
            self._model.join(self._request.rendezvous, rank, self._request.trainers)

    def train(self, epochs: Iterable[Iterable[Mapping[str, Any]]]) -> TrainerResult:
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
        return TrainerResult(times, self._keys.epochs())

    def _train_epoch(
        self, batches: Iterable[Mapping[str, Any]], times: EpochTimes, number: int
    ) -> EpochTimes:
        self._keys.open_epoch()
        requested = times.start
        for batch in batches:
            got = time.monotonic()
            rows = self._take(batch, times, number)
            times.rows, times.batches = times.rows + rows, times.batches + 1
            times.wait_seconds += got - requested
            self._spend_step(got, times.step_seconds)
            requested = time.monotonic()
        times.end = time.monotonic()
        times.wait_seconds += times.end - requested
        return times

    def _choose_step(self, before: Sequence[EpochTimes]) -> float:
        """Seconds per step: the slowest trainer's median per batch in the steady epochs before trainers are paced."""
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
        column = batch[self._request.identity]
        rows = count_rows(column)
        if self._request.identifies(number):
            is_key = self._request.content is None
            self._keys.add(column.numpy() if is_key else fingerprint_rows(column))
        if self._model is not None:
            times.losses.append(self._model.step(batch))
        return rows


def _choose_dtype(request: Request) -> type[np.integer[Any]]:
    if request.content is not None:
        return np.uint64
    return np.uint32 if request.rows < 2**32 else np.int64


def _make_model(request: Request) -> SmallModel | None:
    if request.label is None:
        return None
    inputs = [name for name in request.columns if name not in (request.label, request.key)]
    model = SmallModel(inputs, request.label, request.seed)
    model.warm_up()
    return model


@dataclass
class Computing:
    """Products of small matrices on one thread, each launched from Python like the operations of a model.

    A launch takes some tenths of a millisecond, during which it releases the GIL.
    """

    _matrices: list[Any] = field(default_factory=list)

    def run(self, launches: int) -> float:
        import torch

        if not self._matrices:
            self._matrices = [torch.full((_SIDE, _SIDE), 0.5) for _ in range(3)]
        one, other, product = self._matrices
        began = time.monotonic()
        for _ in range(launches):
            torch.mm(one, other, out=product)
        return time.monotonic() - began

    def core_wait(self) -> float:
        """Total seconds that this thread was runnable without a core; 0 if the system does not report it."""
        try:
            return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def time_launch_alone(self) -> float:
        """Seconds of one launch, measured after the engine has become idle.

        If the engine is still busy after `_SETTLE_SECONDS`, the reported slowdown is too small.
        """
        until = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < until:
            self.run(_LAUNCHES)
        times = [self.run(_LAUNCHES)]
        while sum(times) < _ALONE_SECONDS:
            times.append(self.run(_LAUNCHES))
        return statistics.fmean(times) / _LAUNCHES


def slowed_share(seconds: float, launches: int, alone: tuple[float, float]) -> float:
    """Relative slowdown of launches, compared with launches measured alone before and after."""
    return seconds / (launches * statistics.fmean(alone)) - 1.0


def agree_on_maximum(rendezvous: str, own: float, rank: int, trainers: int, timeout_seconds: float) -> float:
    """The maximum of all trainers' numbers, which they exchange through a file next to ``rendezvous``."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch imports it with others

    store = FileStore(f"{rendezvous}-pace", trainers)
    store.set_timeout(timedelta(seconds=timeout_seconds))
    store.set(str(rank), repr(own))
    # this waits for the others
    return max(float(store.get(str(other))) for other in range(trainers))


def remove_agreement(rendezvous: str) -> None:
    for file in Path(rendezvous).parent.glob(f"{Path(rendezvous).name}*"):
        file.unlink(missing_ok=True)
