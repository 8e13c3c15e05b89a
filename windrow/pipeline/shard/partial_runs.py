"""Which portion of a run is placed at a time, and which slices of a window runs still need."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.plan.program import RUN_BYTES
from windrow.pipeline.plan.window_budget import WHOLE_RUNS
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run

# report a row size only when it exceeds the last reported one by this factor
_REPORT_GROWTH = 1.2


class Portions:
    """Cuts runs into portions of whole batches, of about `RUN_BYTES` by the measured row size.

    The length of runs is part of the window's layout, and is computed from estimated row sizes. Each shard
    decides by itself how many rows of a run it places at a time. Where transforms after the shuffle make the
    delivered rows (``is_transformed``), portions are as small as possible until some have been measured.
    """

    def __init__(self, *, is_transformed: bool, min_batches: int = 1) -> None:
        self._is_measured = not is_transformed
        self._min_batches = min_batches
        self._lock = threading.Lock()
        self._row_bytes = self._reported_bytes = 0.0

    def stop(self, run: Run, *, run_rows: int, batch_rows: int, row_bytes: float) -> int:
        """Return where the portion that starts with the run's first needed row ends, in rows of the run.

        ``run_rows``: rows of a full run; ``row_bytes``: bytes of a row of the window before it is transformed.

        >>> run, portions = Run(slice=0, index=0, place=5, rows=95), Portions(is_transformed=False)
        >>> [portions.stop(run, run_rows=100, batch_rows=10, row_bytes=size) for size in (1e2, 2e5, 1e9)]
        [95, 35, 5]
        """
        row_bytes = max(1.0, row_bytes, self._row_bytes)
        is_whole = run_rows * row_bytes <= WHOLE_RUNS * RUN_BYTES
        if self._is_measured and (is_whole or (run.rows - run.skip) * row_bytes <= RUN_BYTES):
            return run.rows
        fitting = int(RUN_BYTES / (batch_rows * row_bytes)) if self._is_measured else 0
        place = run.place + run.skip
        stop = place - place % batch_rows + batch_rows * max(self._min_batches, fitting)
        return min(run.rows, stop - run.place)

    def measure(self, rows: pa.RecordBatch) -> float | None:
        """Measure delivered rows; return the bytes per row if they grew since the last report, else None."""
        if not rows.num_rows:
            return None
        row_bytes = arrow_bytes(rows) / rows.num_rows
        with self._lock:
            self._is_measured = True
            self._row_bytes = max(self._row_bytes, row_bytes)
            if self._row_bytes <= _REPORT_GROWTH * self._reported_bytes:
                return None
            self._reported_bytes = self._row_bytes
            return self._row_bytes


class SliceUses:
    """Counts the runs and portions of runs that still need each slice; reports how many first slices are free."""

    def __init__(self, data: WindowData, report: Callable[[int, bool], None]) -> None:
        self._data = data
        self._report = report
        self._lock = threading.Lock()
        self._uses = [0] * len(data.slices)
        self._free = 0
        self._all_submitted = False
        self._reported = (0, False)

    def expect(self, slices: list[int]) -> None:
        """Add one use for each slice listed: one per run, and one per portion of a run except the last."""
        with self._lock:
            for number in slices:
                self._uses[number] += 1

    def used(self, number: int) -> None:
        """Remove one use of a slice: a run or a portion of one has been placed."""
        with self._lock:
            self._uses[number] -= 1
        self._advance()

    def finish(self) -> None:
        """Note that every run of the window has been submitted."""
        self._all_submitted = True
        self._advance()

    def _advance(self) -> None:
        with self._lock:
            while self._free < len(self._uses) and self._uses[self._free] == 0:
                self._data.slices[self._free] = MapOutputs()
                self._free += 1
            ended = self._all_submitted and self._free == len(self._uses)
            news = (self._free, ended)
            if news == self._reported:
                return
            self._reported = news
        self._report(*news)
