"""The throughput limit for batches: row groups in stored order, decoded on all cores, cut into torch batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from bench.batches import Tensors, cut_batches
from bench.request import Request
from bench.run_details import RunDetails
from bench.tensors import TableToTensors
from bench.trainer import Progress, Trainer, TrainerResult

__all__ = ["TorchScan"]


class TorchScan:
    """Decodes a few row groups ahead; batches that lie within one row group are views."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._trainer = Trainer(request, "trainer 0", progress)
        self._convert = TableToTensors(request.tensor_columns)

    def prepare(self) -> None:
        """Import torch."""
        import torch

        torch.set_num_threads(1)

    def run(self) -> Sequence[TrainerResult]:
        """Deliver all files once per epoch."""
        with ThreadPoolExecutor(self._request.cores) as pool:
            return [self._trainer.train(self._batches(pool) for _ in range(self._request.epochs))]

    def _batches(self, pool: ThreadPoolExecutor) -> Iterator[Tensors]:
        return cut_batches(self._tables(pool), self._request.batch_size)

    def _tables(self, pool: ThreadPoolExecutor) -> Iterator[Tensors]:
        ahead: deque[Future[Tensors]] = deque()
        for path, footer, number in self._groups():
            ahead.append(pool.submit(self._read, path, footer, number))
            if len(ahead) > 2 * self._request.cores:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _groups(self) -> Iterator[tuple[str, pq.FileMetaData, int]]:
        for path in self._request.paths:
            footer = pq.read_metadata(path)
            for number in range(footer.num_row_groups):
                yield path, footer, number

    def _read(self, path: str, footer: pq.FileMetaData, number: int) -> Tensors:
        with pq.ParquetFile(path, metadata=footer, memory_map=True, pre_buffer=False) as file:
            table: pa.Table = file.read_row_group(
                number, columns=list(self._request.columns), use_threads=False
            )
        return self._convert(table)

    def details(self) -> RunDetails:
        """Nothing to report."""
        return RunDetails()

    def close(self) -> None:
        """Nothing to stop."""
