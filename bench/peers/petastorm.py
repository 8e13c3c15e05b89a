"""Petastorm's batch loaders: with a shuffling queue, and with everything in memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from bench.peers.base import OneTrainer


class Petastorm(OneTrainer):
    """A new reader per epoch, because a reader repeats its first order."""

    libraries = ("petastorm.pytorch",)

    def read_epoch(self, number: int) -> Iterable[Any]:
        from petastorm.pytorch import BatchedDataLoader

        loader = BatchedDataLoader(
            self.open_reader(number), self._request.batch_size, shuffling_queue_capacity=self.buffer_rows
        )
        with loader:
            yield from loader

    def open_reader(self, number: int) -> Any:
        from petastorm import make_batch_reader

        return make_batch_reader(
            [Path(path).as_uri() for path in self._request.paths],
            schema_fields=[f"^{name}$" for name in self._request.columns],
            workers_count=self._request.cores,
            seed=self._request.seed + number,
            shuffle_row_groups=True,
            num_epochs=1,
        )


class PetastormMemory(Petastorm):
    _batches: Any = None

    def read_epoch(self, number: int) -> Iterable[Any]:
        if self._batches is None:
            self._batches = iter(self._load())
        return islice(self._batches, -(-self._request.rows // self._request.batch_size))

    def _load(self) -> Any:
        from petastorm.pytorch import InMemBatchedDataLoader

        return InMemBatchedDataLoader(
            self.open_reader(0),
            self._request.batch_size,
            num_epochs=self._request.epochs,
            seed=self._request.seed,
            rows_capacity=self._request.rows,
            shuffle=True,
        )
