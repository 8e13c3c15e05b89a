"""How many rows of a run are placed at once: all of them, unless its rows turn out to be large."""

from __future__ import annotations

import threading

import pyarrow as pa

from windrow.pipeline.plan.program import RUN_BYTES
from windrow.pipeline.plan.window_budget import WHOLE_RUNS
from windrow.shuffle.order.runs import Run

__all__ = ["Portions"]

# What differs by less has been told.
_REPORT_GROWTH = 1.2


class Portions:
    """Cuts runs into portions of whole batches, of about `RUN_BYTES` as rows have been measured to take.

    The rows of a run are part of what a window looks like, and follow from estimates. How many of them
    are placed at once is the shard's own affair.

    Parameters
    ----------
    is_transformed
        Whether transforms after the shuffle make the rows that are delivered: until some have been
        measured, portions are as small as they may be.
    least_batches
        Batches of a portion, at least.
    """

    def __init__(self, *, is_transformed: bool, min_batches: int = 1) -> None:
        self._is_measured = not is_transformed
        self._min_batches = min_batches
        self._lock = threading.Lock()
        self._row_bytes = self._reported_bytes = 0.0

    def stop(self, run: Run, *, run_rows: int, batch_rows: int, row_bytes: float) -> int:
        """Where the portion of a run ends that begins with its first wanted row.

        Parameters
        ----------
        run_rows
            Rows of a full run.
        row_bytes
            What a row of the window takes before it is transformed.

        Examples
        --------
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
        """Note what rows take as they are delivered; returns it if there is something new to tell."""
        if not rows.num_rows:
            return None
        row_bytes = rows.nbytes / rows.num_rows
        with self._lock:
            self._is_measured = True
            self._row_bytes = max(self._row_bytes, row_bytes)
            if self._row_bytes <= _REPORT_GROWTH * self._reported_bytes:
                return None
            self._reported_bytes = self._row_bytes
            return self._row_bytes
