"""Daft's ``shuffle``, a sort by random numbers, on threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.peers.base import OneTrainer
from bench.training.tensors import cut_batches, to_tensors


class Daft(OneTrainer):
    def prepare(self) -> None:
        import daft

        super().prepare()
        daft.set_runner_native()

    def read_epoch(self, number: int) -> Iterable[Any]:
        """Cut batches of the requested size; Daft chooses its own batch sizes."""
        import daft

        frame = daft.read_parquet(list(self._request.paths)).select(*self._request.columns)
        shuffled = frame.shuffle(seed=self._request.seed + number)
        tables = (to_tensors(batch) for batch in shuffled.to_arrow_iter())
        return cut_batches(tables, self._request.batch_size)
