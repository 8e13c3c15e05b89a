"""A system with one consumer, in its own process: what most rivals are."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from bench.account import Account
from bench.peers.names import BUFFER_SHARE
from bench.request import Request
from bench.trainer import Progress, Trainer, TrainerResult

__all__ = ["OneTrainer"]


class OneTrainer:
    """Subclasses say what is made ready, and what the batches of an epoch are."""

    libraries: tuple[str, ...] = ()

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._trainer = Trainer(request, "trainer 0", progress)

    @property
    def buffer_rows(self) -> int:
        """The shuffle buffer of a rival that has one."""
        return max(1, self._request.rows // BUFFER_SHARE)

    def prepare(self) -> None:
        """Import the library; convert the files where it needs that.

        Torch gets one thread: with more, its short operations wait for each other.
        """
        import torch

        torch.set_num_threads(1)
        for name in self.libraries:
            importlib.import_module(name)

    def run(self) -> Sequence[TrainerResult]:
        """Deliver every epoch."""
        return [self._trainer.train(self.read_epoch(number) for number in range(self._request.epochs))]

    def read_epoch(self, number: int) -> Iterable[Any]:
        """The batches of one epoch."""
        raise NotImplementedError

    def account(self) -> Account:
        """Nothing to tell."""
        return Account()

    def close(self) -> None:
        """Nothing to stop."""
