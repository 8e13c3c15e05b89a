"""Computes run and place of each row of a window, for all destinations in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.native import RunIds
from windrow.shuffle.order.runs import WindowRuns

__all__ = ["Destinations"]

_MAX_UINT32 = 2**32 - 1
# added to any run number, the result is an invalid index
_NO_RUN = -(2**40)


class Destinations:
    """Finds the run of each row, over all destinations; ``layouts`` are the runs of one window for each of them.

    Run ids are numbered consecutively over all destinations. ``slice_starts`` has the first run id of each
    slice of each, then the end of the last slice. The time per call does not depend on the number of
    destinations; only the lookup tables, built once, do.
    """

    def __init__(self, layouts: Sequence[WindowRuns]) -> None:
        self._layouts = layouts
        self._ends = np.cumsum([0, *(int(layout.slice_starts[-1]) for layout in layouts)]).tolist()
        self._word = np.uint16 if self._ends[-1] < 2**16 else np.uint32
        starts = (layout.slice_starts[1:] + end for layout, end in zip(layouts, self._ends, strict=False))
        self.slice_starts: NDArray[np.int64] = np.concatenate([[0], *starts])

    def assign(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, RunIds, NDArray[np.uint32]]:
        """Find the run, and the place within it, of rows of this window given by their position in the epoch.

        Returns for each entry the source row (None: entry i is row i), the run id (past the last run: the row
        is dropped), and the place, its offset within the run. If rows are repeated as padding, there are more
        entries than rows.
        """
        find = self._find if native.LIBRARY is not None and self._fits_32_bits else self._find_numpy
        runs, places = find(rows)
        sources, pads, pad_places = self._find_padding(rows)
        if not len(pads):
            return None, runs, places
        return (
            np.concatenate([np.arange(len(rows)), sources]),
            np.concatenate([runs, pads.astype(runs.dtype)]),
            np.concatenate([places, pad_places.astype(np.uint32)]),
        )

    @property
    def _fits_32_bits(self) -> bool:
        """Whether all positions up to the end of the window fit into 32 bits."""
        return self._layouts[0].stop_row <= _MAX_UINT32

    def _find(self, rows: NDArray[np.int64]) -> tuple[RunIds, NDArray[np.uint32]]:
        """Use the kernel, except for the rows of an incomplete last step, which have another assignment."""
        layout = self._layouts[0]
        assignment, total, stop = layout.assignment, layout.total, _MAX_UINT32
        if total is not None and not assignment.ends_regularly(total):
            stop = assignment.start_row + assignment.full_steps(total) * assignment.step_rows
        # clamping is safe: a divisor beyond 32 bits is larger than every row number here
        divisors = (
            min(assignment.step_rows, _MAX_UINT32),
            min(assignment.batch_rows, _MAX_UINT32),
            min(layout.run_rows, _MAX_UINT32),
        )
        ids, streams = self._tables
        row_numbers = np.ascontiguousarray(rows, np.int64)
        runs, places, rest = native.assign(
            row_numbers, assignment.start_row, stop, divisors, streams, ids, self._ends[-1]
        )
        if len(rest):
            runs[rest], places[rest] = self._find_numpy(rows[rest])
        return runs, places

    @cached_property
    def _tables(self) -> tuple[RunIds, NDArray[np.int64]]:
        """The ids of all runs, and the ``shards`` table of `native.assign`, with one more row for no shard."""
        streams = np.zeros((self._layouts[0].assignment.shards + 1, 3), np.int64)
        streams[:, 0] = _NO_RUN
        ids, before = [], 0
        for layout, end in zip(self._layouts, self._ends, strict=False):
            streams[list(layout.shards)] = layout.streams
            streams[list(layout.shards), 0] += before
            ids.append(layout.ids.astype(self._word) + self._word(end))
            before += len(ids[-1])
        return np.concatenate(ids), streams

    def _find_numpy(self, rows: NDArray[np.int64]) -> tuple[RunIds, NDArray[np.uint32]]:
        """The NumPy twin of the kernel, which handles all rows."""
        layout = self._layouts[0]
        # divisions dominate, and cost half as much on 32 bits
        row_numbers: NDArray[Any] = rows.astype(np.uint32) if self._fits_32_bits else rows
        shards, places = layout.assignment.assign_rows(row_numbers, layout.total)
        run_rows = row_numbers.dtype.type(min(layout.run_rows, int(np.iinfo(row_numbers.dtype).max)))
        of_stream = places // run_rows
        within = places - of_stream * run_rows
        ids, streams = self._tables
        offsets, first_runs, skipped = streams.T
        own = 0 if shards is None else shards
        at = of_stream + offsets[own]
        runs: RunIds = np.full(len(rows), self._ends[-1], self._word)
        here = (at >= 0) & (at < len(ids))
        runs[here] = ids[at[here]]
        if skipped.any():
            within = within - np.where(of_stream == first_runs[own], skipped[own], 0)
        return runs, within.astype(np.uint32)

    def _find_padding(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The indices of padding rows in ``rows``, and the run ids and places of their copies."""
        repeated, ids, places = self._padding
        (held,) = np.nonzero(np.isin(rows, repeated)) if len(repeated) else (repeated,)
        if not len(held):
            return held, held, held
        order = held[np.argsort(rows[held], kind="stable")]
        found = order[np.minimum(np.searchsorted(rows[order], repeated), len(order) - 1)]
        (here,) = np.nonzero(rows[found] == repeated)
        return found[here], ids[here], places[here]

    @cached_property
    def _padding(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The positions of the rows that padding repeats, and the run ids and places of the copies."""
        ids = [layout.padding_ids + end for layout, end in zip(self._layouts, self._ends, strict=False)]
        rows = np.concatenate([layout.padding[0] for layout in self._layouts])
        places = np.concatenate([layout.padding_places for layout in self._layouts])
        return rows, np.concatenate(ids), places
