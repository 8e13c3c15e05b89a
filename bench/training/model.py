"""A small real model: embeddings of integers, normalised numbers, one hidden layer, SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BUCKETS = 64
_WIDTH = 4
_HIDDEN = 32
_LEARNING_RATE = 0.2


class SmallModel:
    """Predicts one column from the others, on one thread; a constant prediction has a loss of 1."""

    def __init__(self, integers: Sequence[str], floats: Sequence[str], label: str, seed: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._torch = torch
        self._label = label
        self._integers, self._numbers = tuple(integers), (*integers, *floats)
        self._embeddings = torch.nn.Embedding(_BUCKETS * max(1, len(integers)), _WIDTH)
        self._normalise = torch.nn.BatchNorm1d(len(self._numbers), affine=False)
        width = _WIDTH * len(integers) + len(self._numbers)
        self._head = torch.nn.Sequential(
            torch.nn.Linear(width, _HIDDEN), torch.nn.ReLU(), torch.nn.Linear(_HIDDEN, 1)
        )
        used = [self._embeddings, self._head] if integers else [self._head]
        self._parameters = [parameter for module in used for parameter in module.parameters()]
        self._optimiser = torch.optim.SGD(self._parameters, lr=_LEARNING_RATE, momentum=0.9)
        self._scale: tuple[float, float] | None = None
        self._trainers = 1

    def warm_up(self) -> None:
        """Take one step on dummy data, so that torch has allocated its memory and loaded its code."""
        before = [parameter.detach().clone() for parameter in self._parameters]
        noise = dict.fromkeys(self._numbers, self._torch.arange(_BUCKETS))
        self.step({**noise, self._label: self._torch.rand(_BUCKETS)})
        self._scale = None
        self._optimiser.state.clear()
        with self._torch.no_grad():
            for parameter, old in zip(self._parameters, before, strict=True):
                parameter.copy_(old)

    def join(self, rendezvous: str, rank: int, trainers: int) -> None:
        self._torch.distributed.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=trainers
        )
        self._trainers = trainers

    def step(self, batch: Mapping[str, Any]) -> float:
        """Take one SGD step and return the batch's mean squared error before it."""
        target = self._standardise_label(batch[self._label])
        predicted = self._head(self._torch.cat(self._inputs(batch), dim=1)).squeeze(1)
        loss = self._torch.nn.functional.mse_loss(predicted, target)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if self._trainers > 1:
            self._average_gradients()
        self._optimiser.step()
        return float(loss.detach())

    def _average_gradients(self) -> None:
        gradients: list[Any] = [parameter.grad for parameter in self._parameters]
        joined = self._torch.cat([gradient.flatten() for gradient in gradients])
        self._torch.distributed.all_reduce(joined)
        parts = (joined / self._trainers).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _standardise_label(self, values: Any) -> Any:
        values = values.to(self._torch.float32)
        if self._scale is None:
            self._scale = (float(values.mean()), float(values.std()) or 1.0)
        mean, deviation = self._scale
        return (values - mean) / deviation

    def _inputs(self, batch: Mapping[str, Any]) -> list[Any]:
        """A matrix of normalised numbers, and one of embeddings if there are integers."""
        floats = [batch[name].to(self._torch.float32) for name in self._numbers]
        inputs: list[Any] = [self._normalise(self._torch.stack(floats, dim=1))]
        if self._integers:
            rows = [batch[name] % _BUCKETS + _BUCKETS * at for at, name in enumerate(self._integers)]
            inputs.append(self._embeddings(self._torch.stack(rows, dim=1)).flatten(1))
        return inputs
