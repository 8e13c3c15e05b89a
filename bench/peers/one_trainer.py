"""Base class of systems with a single consumer, like most rivals."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from bench.peers.names import BUFFER_SHARE
from bench.request import Request
from bench.run_details import RunDetails
from bench.tensors import TableToTensors
from bench.trainer import Progress, Trainer, TrainerResult

__all__ = ["OneTrainer"]


class OneTrainer:
    """Subclasses define the preparation and the batches of an epoch."""

    libraries: tuple[str, ...] = ()

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._trainer = Trainer(request, "trainer 0", progress)

    @property
    def buffer_rows(self) -> int:
        """Rows of the shuffle buffer of a rival that has one."""
        return max(1, self._request.rows // BUFFER_SHARE)

    def prepare(self) -> None:
        """Import the library; subclasses also convert the files if necessary.

        Torch gets one thread, because its short operations are slower with several.
        """
        import torch

        torch.set_num_threads(1)
        for name in self.libraries:
            importlib.import_module(name)

    def run(self) -> Sequence[TrainerResult]:
        """Deliver every epoch."""
        return [self._trainer.train(self.read_epoch(number) for number in range(self._request.epochs))]

    def convert_table(self, table: Any) -> Any:
        """Arrow as tensors, or as it is if there are only lists and strings."""
        columns = self._request.tensor_columns
        return TableToTensors(columns)(table) if columns else table

    def read_epoch(self, number: int) -> Iterable[Any]:
        """The batches of one epoch."""
        raise NotImplementedError

    def details(self) -> RunDetails:
        """Nothing to report."""
        return RunDetails()

    def close(self) -> None:
        """Nothing to stop."""
