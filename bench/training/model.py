"""A small real model: integers as embeddings and as normalised numbers, one hidden layer, SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BUCKETS = 64
_WIDTH = 4
_HIDDEN = 32
_LEARNING_RATE = 0.2


class SmallModel:
    """Predicts one column from others of integers, on one thread; a constant prediction has a loss of 1."""

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
