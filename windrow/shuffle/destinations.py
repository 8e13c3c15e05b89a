"""Where the rows of a window go, over all destinations at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle import kernels
from windrow.shuffle.runs import WindowRuns

__all__ = ["Destinations"]

RunIds = NDArray[np.uint16 | np.uint32]

_MOST = 2**32 - 1
# added to any run's number, it leads to no id
_NOWHERE = -(2**40)


class Destinations:
    """Finds the run of each row, whichever destination it is of.

    What it takes does not grow with the number of destinations, except for what is made once.

    Parameters
    ----------
    layouts
        The runs of one window for each destination. Their ids follow each other.

    Attributes
    ----------
    slice_starts
        The first run id of every slice of every destination, with the end of the last.
    """

    def __init__(self, layouts: Sequence[WindowRuns]) -> None:
        self._layouts = layouts
        self._ends = np.cumsum([0, *(int(layout.slice_starts[-1]) for layout in layouts)]).tolist()
        self._word = np.uint16 if self._ends[-1] < 2**16 else np.uint32
        starts = (layout.slice_starts[1:] + end for layout, end in zip(layouts, self._ends, strict=False))
        self.slice_starts: NDArray[np.int64] = np.concatenate([[0], *starts])

    def assign(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, RunIds, NDArray[np.uint32]]:
        """Find the run and the place within it of rows of the epoch's order.

        Parameters
        ----------
        rows
            (rows,) numbers in the epoch's order, all of this window.

        Returns
        -------
        sources, runs, places
            For each entry the source row (None: entry i is row i), the run id (past the
            last one: left out), and the place in the run. Entries outnumber the rows
            where rows are repeated.
        """
        is_short = self._layouts[0].stop_row <= _MOST
        runs, places = (self._find if kernels.LIBRARY is not None and is_short else self._find_each)(rows)
        sources, pads = self._find_padding(rows)
        if not len(pads):
            return None, runs, places
        return (
            np.concatenate([np.arange(len(rows)), sources]),
            np.concatenate([runs, pads.astype(runs.dtype)]),
            np.concatenate([places, np.zeros(len(pads), dtype=np.uint32)]),
        )

    def _find(self, rows: NDArray[np.int64]) -> tuple[RunIds, NDArray[np.uint32]]:
        """Let the kernel find them, but for those of a last step, which is dealt in another way."""
        layout = self._layouts[0]
        deal, total, stop = layout.deal, layout.total, _MOST
        # a single shard has the rest as it has all others
        if total is not None and deal.rest_rows(total) and (deal.shards > 1 or deal.drop_last):
            stop = deal.start_row + deal.full_steps(total) * deal.step_rows
        # a step larger than the words hold is larger than the epoch too: a larger divisor changes nothing
        divisors = min(deal.step_rows, _MOST), min(deal.batch_rows, _MOST), min(layout.run_rows, _MOST)
        ids, shards = self._tables
        words = np.ascontiguousarray(rows, np.int64)
        runs, places, rest = kernels.assign(
            words, deal.start_row, stop, divisors, shards, ids, self._ends[-1]
        )
        if len(rest):
            runs[rest], places[rest] = self._find_each(rows[rest])
        return runs, places

    @cached_property
    def _tables(self) -> tuple[RunIds, NDArray[np.int64]]:
        """The ids of all runs, and of each shard what `kernels.assign` wants."""
        shards = np.zeros((self._layouts[0].deal.shards, 3), np.int64)
        shards[:, 0] = _NOWHERE
        ids, before = [], 0
        for layout, end in zip(self._layouts, self._ends, strict=False):
            own = list(layout.shards)
            offsets, first_runs, skipped, _ = (each[own] for each in layout.by_shard)
            shards[own] = np.stack([before + offsets - first_runs, first_runs, skipped], axis=1)
            ids.append(layout.ids.astype(self._word) + self._word(end))
            before += len(ids[-1])
        return np.concatenate(ids), shards

    def _find_each(self, rows: NDArray[np.int64]) -> tuple[RunIds, NDArray[np.uint32]]:
        """Ask the destinations one by one."""
        runs: Any = np.full(len(rows), self._ends[-1], self._word)
        places = np.zeros(len(rows), np.uint32)
        for layout, end in zip(self._layouts, self._ends, strict=False):
            own_runs, own_places = layout.find(rows)
            here = np.flatnonzero(own_runs < layout.slice_starts[-1])
            runs[here] = own_runs[here].astype(self._word) + self._word(end)
            places[here] = own_places[here]
        return runs, places

    def _find_padding(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where repeated rows stand in ``rows``, and their run ids."""
        found = [layout.find_padding(rows) for layout in self._layouts]
        return (
            np.concatenate([sources for sources, _ in found]),
            np.concatenate([ids + end for (_, ids), end in zip(found, self._ends, strict=False)]),
        )
