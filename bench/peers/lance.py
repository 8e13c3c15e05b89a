"""Lance: rows taken by index in a random order, and the batches of its torch dataset in a random order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.peers.base import OneTrainer, convert_once, map_ahead
from bench.training.facts import iterate_tables


class _Lance(OneTrainer):
    libraries = ("lance",)

    def prepare(self) -> None:
        import lance

        super().prepare()
        self._dataset = lance.dataset(str(convert_once(self._request, self._convert)))

    def _convert(self, home: Path) -> None:
        import lance

        batches = (batch for table in iterate_tables(self._request.paths) for batch in table.to_batches())
        lance.write_dataset(pa.RecordBatchReader.from_batches(self._request.schema, batches), str(home))


class LanceTake(_Lance):
    """Every batch is one ``take`` of random rows, a few of them ahead on threads.

    Its ``get_safe_loader`` takes the same rows in worker processes, and makes Python objects of all values.
    """

    def read_epoch(self, number: int) -> Iterable[Any]:
        order = np.random.default_rng([self._request.seed, number]).permutation(self._request.rows)
        size = self._request.batch_size
        batches = (order[first : first + size] for first in range(0, len(order), size))
        return map_ahead(self._take, batches, self._request.cores)

    def _take(self, indices: Any) -> Any:
        return self.convert_table(self._dataset.take(indices))


class LanceBatches(_Lance):
    """Its dataset for torch, with the sampler that shuffles: of batches, whose rows stay as they are stored."""

    def read_epoch(self, number: int) -> Iterable[Any]:
        from lance.sampler import ShardedBatchSampler
        from lance.torch.data import LanceDataset

        sampler = ShardedBatchSampler(0, 1, randomize=True, seed=self._request.seed + number)
        batches = LanceDataset(
            self._dataset,
            self._request.batch_size,
            sampler=sampler,
            to_tensor_fn=None,  # its own function makes tensors of numbers only
        )
        return map(self.convert_table, batches)
