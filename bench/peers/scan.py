"""The throughput limit: pyarrow decodes every row group on all cores and drops it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq

from bench.request import Request
from bench.run_details import RunDetails
from bench.trainer import EpochTimes, Progress, TrainerResult

__all__ = ["Scan"]


class Scan:
    """Row groups on a thread pool, each decoded by one thread from a memory map."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress

    def prepare(self) -> None:
        """Nothing to start."""

    def run(self) -> Sequence[TrainerResult]:
        """Scan all files once per epoch."""
        times: list[EpochTimes] = []
        start = time.monotonic()
        with ThreadPoolExecutor(self._request.cores) as pool:
            for number in range(self._request.epochs):
                times.append(self._scan(pool, EpochTimes(start)))
                start = times[-1].end
                self._progress(number, times[-1].rows)
        return [TrainerResult(times, [], [])]

    def _scan(self, pool: ThreadPoolExecutor, times: EpochTimes) -> EpochTimes:
        footers = list(pool.map(pq.read_metadata, self._request.paths))
        groups = [
            (path, footer, number)
            for path, footer in zip(self._request.paths, footers, strict=True)
            for number in range(footer.num_row_groups)
        ]
        for rows in pool.map(self._read, groups):
            times.first = times.first or time.monotonic()
            times.rows, times.batches = times.rows + rows, times.batches + 1
        times.end = time.monotonic()
        return times

    def _read(self, group: tuple[str, pq.FileMetaData, int]) -> int:
        path, footer, number = group
        with pq.ParquetFile(path, metadata=footer, memory_map=True, pre_buffer=False) as file:
            table = file.read_row_group(number, columns=list(self._request.columns), use_threads=False)
        return int(table.num_rows)

    def details(self) -> RunDetails:
        """Nothing to report."""
        return RunDetails()

    def close(self) -> None:
        """Nothing to stop."""
