"""Limits: what decoding and tensors take."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers.base import OneTrainer, Peer, map_ahead
from bench.training.tensors import Tensors, cut_batches, to_tensors
from bench.training.trainer import EpochTimes, TrainerResult

RowGroup = tuple[str, pq.FileMetaData, int]


def _list_groups(paths: Sequence[str]) -> Iterator[RowGroup]:
    for path in paths:
        footer = pq.read_metadata(path)
        for number in range(footer.num_row_groups):
            yield path, footer, number


def _read_group(group: RowGroup, columns: Sequence[str]) -> pa.Table:
    path, footer, number = group
    with pq.ParquetFile(path, metadata=footer, memory_map=True, pre_buffer=False) as file:
        return file.read_row_group(number, columns=list(columns), use_threads=False)


class Scan(Peer):
    """Row groups on a thread pool, each decoded by one thread from a memory map."""

    def run(self) -> Sequence[TrainerResult]:
        times: list[EpochTimes] = []
        with ThreadPoolExecutor(self._request.cores) as pool:
            start = time.monotonic()
            for _ in range(self._request.epochs):
                rows = list(pool.map(self._scan, _list_groups(self._request.paths)))
                if sum(rows) != self._request.rows:
                    raise RuntimeError(f"the files have {sum(rows)} rows, not {self._request.rows}")
                times.append(EpochTimes(start, time.monotonic(), rows=sum(rows), batches=len(rows)))
                start = times[-1].end
        return [TrainerResult(times, [])]

    def _scan(self, group: RowGroup) -> int:
        return int(_read_group(group, self._request.columns).num_rows)


class TorchScan(OneTrainer):
    """Decodes a few row groups ahead; batches that lie within one row group are views."""

    def read_epoch(self, number: int) -> Iterable[Tensors]:
        def read(group: RowGroup) -> Tensors:
            return to_tensors(_read_group(group, self._request.columns))

        tables = map_ahead(read, _list_groups(self._request.paths), self._request.cores)
        return cut_batches(tables, self._request.batch_size)
