"""A limit of first epochs: first touch of the memory for two windows of the whole dataset, on all cores."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq

from bench.request import Request
from bench.run_details import RunDetails
from bench.trainer import EpochTimes, Progress, TrainerResult

__all__ = ["FreshMemory"]

_WINDOWS = 2
_BLOCK_BYTES = 16 * 2**20
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
_TEXT_BYTES = 16  # a guess: footers do not state it


class FreshMemory:
    """Reads nothing: allocates blocks, writes one byte per page, and keeps all blocks until the end.

    The first epoch pays for first-touch page faults, which are expensive if a hypervisor has to provide
    the pages; later epochs write to the same pages.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._blocks = 0

    def prepare(self) -> None:
        """Compute the decoded size from the footers."""
        columns = set(self._request.columns)
        footers = map(pq.read_metadata, self._request.paths)
        groups = (footer.row_group(number) for footer in footers for number in range(footer.num_row_groups))
        decoded = sum(
            group.num_rows * _WIDTHS.get(group.column(at).physical_type, _TEXT_BYTES)
            for group in groups
            for at in range(group.num_columns)
            if group.column(at).path_in_schema.split(".")[0] in columns
        )
        self._blocks = -(-_WINDOWS * decoded // _BLOCK_BYTES)

    def run(self) -> Sequence[TrainerResult]:
        """Touch all pages once per epoch."""
        times: list[EpochTimes] = []
        start = time.monotonic()
        held = [
            mmap.mmap(-1, _BLOCK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for _ in range(self._blocks)
        ]
        with ThreadPoolExecutor(self._request.cores) as pool:
            for number in range(self._request.epochs):
                epoch = EpochTimes(start)
                list(pool.map(_touch, held))
                epoch.first = epoch.end = start = time.monotonic()
                epoch.rows, epoch.batches = self._request.rows, len(held)
                times.append(epoch)
                self._progress(number, epoch.rows)
        return [TrainerResult(times, [], [])]

    def details(self) -> RunDetails:
        """Nothing to report."""
        return RunDetails()

    def close(self) -> None:
        """Nothing to stop."""


def _touch(block: mmap.mmap) -> None:
    np.frombuffer(block, np.uint8)[:: mmap.PAGESIZE] = 1
