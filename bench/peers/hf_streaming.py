"""HF datasets, streaming: Parquet as it is, through a shuffle buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.peers.one_trainer import OneTrainer
from bench.peers.rows import load_by_workers
from bench.tensors import TableToTensors

__all__ = ["HFStreaming", "HFStreamingBatches"]


class HFStreaming(OneTrainer):
    """Rows as dicts, collated by torch's DataLoader."""

    workers = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._dataset: Any = None

    def prepare(self) -> None:
        """List the files."""
        import datasets

        super().prepare()
        # It sleeps 5 s after each epoch, which would count for much in a small sample and
        # for little in a large dataset.
        datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
        rows = datasets.load_dataset(
            "parquet",
            data_files=list(self._request.paths),
            split="train",
            streaming=True,
            columns=list(self._request.columns),
            cache_dir=self._request.converted,
        )
        buffers = self._request.cores if self.workers else 1  # each worker has its own
        self._dataset = rows.shuffle(seed=self._request.seed, buffer_size=self.buffer_rows // buffers)

    def read_epoch(self, number: int) -> Iterable[Any]:
        """The epoch changes the seed."""
        self._dataset.set_epoch(number)
        return load_by_workers(self._dataset, self._request)


class HFStreamingBatches(HFStreaming):
    """Arrow from the files through the buffer to the batch: no row is handled by itself."""

    workers = False

    def read_epoch(self, number: int) -> Iterable[Any]:
        """Batches of Arrow, made into tensors without a copy."""
        self._dataset.set_epoch(number)
        batches = self._dataset.with_format("arrow").iter(batch_size=self._request.batch_size)
        return map(TableToTensors(self._request.tensor_columns), batches)
