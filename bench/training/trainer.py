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
from bench.training.request import Request

_AGREE_SECONDS = 60.0
# of the model
_BUCKETS = 64
_WIDTH = 4
_HIDDEN = 32
_LEARNING_RATE = 0.2


class SmallModel:
    """A small real model: integers as embeddings and as normalised numbers, one hidden layer, SGD.

    It predicts one column from others of integers, on one thread; a constant prediction has a loss of 1.
    """

    def __init__(self, inputs: Sequence[str], label: str, seed: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._torch, self._inputs, self._label = torch, tuple(inputs), label
        self._embeddings = torch.nn.Embedding(_BUCKETS * len(inputs), _WIDTH)
        self._normalise = torch.nn.BatchNorm1d(len(inputs), affine=False)
        self._head = torch.nn.Sequential(
            torch.nn.Linear((_WIDTH + 1) * len(inputs), _HIDDEN), torch.nn.ReLU(), torch.nn.Linear(_HIDDEN, 1)
        )
        self._parameters: list[Any] = [*self._embeddings.parameters(), *self._head.parameters()]
        self._optimiser = torch.optim.SGD(self._parameters, lr=_LEARNING_RATE, momentum=0.9)
        self._scale: tuple[float, float] | None = None
        self._trainers = 1

    def warm_up(self) -> None:
        """Take one step on dummy data, so that torch has allocated its memory and loaded its code."""
        noise = dict.fromkeys(self._inputs, self._torch.arange(_BUCKETS))
        self.step({**noise, self._label: self._torch.rand(_BUCKETS)})
        self._scale = None

    def join(self, rendezvous: str, rank: int, trainers: int) -> None:
        self._torch.distributed.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=trainers
        )
        self._trainers = trainers

    def step(self, batch: Mapping[str, Any]) -> float:
        """Take one SGD step and return the batch's mean squared error before it."""
        torch = self._torch
        target = batch[self._label].to(torch.float32)
        self._scale = self._scale or (float(target.mean()), float(target.std()) or 1.0)
        numbers = torch.stack([batch[name].to(torch.float32) for name in self._inputs], dim=1)
        buckets = [batch[name] % _BUCKETS + _BUCKETS * at for at, name in enumerate(self._inputs)]
        embedded = self._embeddings(torch.stack(buckets, dim=1)).flatten(1)
        predicted = self._head(torch.cat([self._normalise(numbers), embedded], dim=1)).squeeze(1)
        loss = torch.nn.functional.mse_loss(predicted, (target - self._scale[0]) / self._scale[1])
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        for parameter in self._parameters if self._trainers > 1 else ():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= self._trainers
        self._optimiser.step()
        return float(loss.detach())


@dataclass
class EpochTimes:
    """One trainer's view of one epoch."""

    start: float
    end: float = 0.0
    wait_seconds: float = 0.0
    rows: int = 0
    batches: int = 0
    losses: list[float] = field(default_factory=list)
    step_seconds: float = 0.0


@dataclass
class TrainerResult:
    """Results of one trainer: times and rows of each epoch."""

    epochs: list[EpochTimes]
    arrived: Sequence[Any]


class Trainer:
    """Consumes epochs of batches of tensors, or of lists and strings."""

    def __init__(self, request: Request) -> None:
        capacity = -(-request.rows // request.trainers) + request.batch_size
        self._request = request
        dtype = np.uint32 if request.content is None else np.uint64
        self._keys = KeyLog(dtype, capacity, request.epochs)
        self._model: SmallModel | None = None
        if request.label is not None:
            inputs = [name for name in request.columns if name not in (request.label, request.key)]
            self._model = SmallModel(inputs, request.label, request.seed)
            self._model.warm_up()
        self._rank = 0
        self._step_seconds: float | None = None

    def join(self, rank: int) -> None:
        self._rank = rank
        if self._model is not None and self._request.rendezvous is not None and self._request.equal:
            # only shards of equal length can train in lockstep
            self._model.join(self._request.rendezvous, rank, self._request.trainers)

    def train(self, epochs: Iterable[Iterable[Mapping[str, Any]]]) -> TrainerResult:
        times: list[EpochTimes] = []
        requested = time.monotonic()
        for batches in epochs:
            epoch = EpochTimes(requested, step_seconds=self._choose_step(times))
            times.append(self._train_epoch(batches, epoch, len(times)))
            requested = times[-1].end
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
            if times.step_seconds:
                time.sleep(max(0.0, got + times.step_seconds - time.monotonic()))
            requested = time.monotonic()
        times.end = time.monotonic()
        times.wait_seconds += times.end - requested
        return times

    def _choose_step(self, before: Sequence[EpochTimes]) -> float:
        """Seconds per step: the slowest trainer's median per batch in the steady epochs before trainers are paced."""
        request = self._request
        if not request.paced or len(before) < request.paced_from:
            return 0.0
        if self._step_seconds is None:
            steady = before[1 : request.paced_from]
            own = statistics.median((one.end - one.start) / max(1, one.batches) for one in steady)
            self._step_seconds = own
            if request.rendezvous is not None:
                self._step_seconds = agree_on_maximum(
                    request.rendezvous, own, self._rank, request.trainers, _AGREE_SECONDS
                )
        return self._step_seconds

    def _take(self, batch: Mapping[str, Any], times: EpochTimes, number: int) -> int:
        column = batch[self._request.identity]
        rows = count_rows(column)
        if self._request.identifies(number):
            is_key = self._request.content is None
            self._keys.add(column.numpy() if is_key else fingerprint_rows(column))
        if self._model is not None:
            times.losses.append(self._model.step(batch))
        return rows


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
