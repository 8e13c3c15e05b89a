"""HF datasets in streaming mode: Parquet files through a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.peers.base import OneTrainer, load_by_workers


class HFStreaming(OneTrainer):
    """Rows as dicts, collated by torch's DataLoader."""

    workers = True

    def prepare(self) -> None:
        import datasets

        super().prepare()
        # it sleeps 5 s after each epoch, which would dominate a small sample
        datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
        rows = datasets.load_dataset(
            "parquet",
            data_files=list(self._request.paths),
            split="train",
            streaming=True,
            columns=list(self._request.columns),
            cache_dir=self._request.converted,
        )
        buffers = self._request.cores if self.workers else 1  # each worker has its own buffer
        if self._request.list_columns:
            rows = rows.with_format("numpy")  # lists as arrays, not as lists of Python numbers
        self._dataset = rows.shuffle(seed=self._request.seed, buffer_size=self.buffer_rows // buffers)

    def read_epoch(self, number: int) -> Iterable[Any]:
        self._dataset.set_epoch(number)
        return load_by_workers(self._dataset, self._request)


class HFStreamingBatches(HFStreaming):
    """Arrow data from the files through the buffer to the batch, without per-row processing."""

    workers = False

    def read_epoch(self, number: int) -> Iterable[Any]:
        self._dataset.set_epoch(number)
        batches = self._dataset.with_format("arrow").iter(batch_size=self._request.batch_size)
        return map(self.convert_table, batches)
