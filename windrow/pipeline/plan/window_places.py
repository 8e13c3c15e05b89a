"""`WindowPlaces`: where the rows of one window go, once its blocks are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.window_splits import WindowPlan
from windrow.pipeline.tasks.map_task import Documents, Ordering
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.window_order import WindowOrder, order_window, place_documents

__all__ = ["WindowPlaces", "place_window"]


@dataclass(frozen=True, eq=False)
class WindowPlaces:
    """Where the rows of a window go."""

    plan: WindowPlan
    order: WindowOrder
    # by destination
    layouts: tuple[WindowRuns, ...]
    # (blocks + 1,) rows of the window before each of its blocks, and their total
    before: NDArray[np.int64]
    # with packing, the documents of each block
    documents: tuple[Documents, ...] | None
    # with a sort, the epoch row of each row of each block
    sorted_rows: tuple[NDArray[np.int64], ...] | None

    def ordering(self, part: int) -> Ordering:
        """Where the rows of a part go."""
        blocks = slice(*self.plan.starts[part : part + 2])
        return Ordering(
            self.order,
            offsets=tuple(self.before[blocks].tolist()),
            layouts=self.layouts,
            documents=None if self.documents is None else self.documents[blocks],
            sorted_rows=None if self.sorted_rows is None else self.sorted_rows[blocks],
        )


def place_window(
    job: Job,
    plan: WindowPlan,
    key: tuple[int, int],
    *,
    layouts: tuple[WindowRuns, ...],
    rows: NDArray[np.int64],
    lengths: Sequence[NDArray[np.int32] | None],
    keys: Mapping[int, Sequence[pa.Table]],
) -> WindowPlaces:
    """Compute where the rows of window ``key`` (epoch and window) go.

    ``rows`` and, with packing, ``lengths`` hold the rows, and the tokens of each document, of every block of the
    dataset. With a sort, ``keys`` holds those of the blocks of each part.
    """
    before = plan.rows_before(rows)
    counted = [lengths[block] for block in plan.blocks.tolist()] if job.packing is not None else []
    of_blocks = [each for each in counted if each is not None]
    assert len(of_blocks) == len(counted), "documents are counted before they are placed"
    ordered = int(before[-1]) if job.packing is None else sum(map(len, of_blocks))
    epoch, window = key
    order = order_window(
        seed=job.row_seed, epoch=epoch, window=window, rows=ordered, first_row=layouts[0].first_row
    )
    documents = None if job.packing is None else _place_documents(order, of_blocks)
    sorted_rows = None
    if job.sort is not None:
        of_parts = [table for part in range(len(plan)) for table in keys[part]]
        unsorted = order.epoch_rows(0, ordered)
        sorted_rows = tuple(job.sort.epoch_rows(of_parts, unsorted, order.first_row))
    return WindowPlaces(plan, order, layouts, before, documents, sorted_rows)


def _place_documents(order: WindowOrder, lengths: Sequence[NDArray[np.int32]]) -> tuple[Documents, ...]:
    """The documents of each block, given the tokens of each of them."""
    of_window = np.concatenate([np.zeros(0, np.int32), *lengths])
    borders = np.cumsum([len(each) for each in lengths])[:-1]
    starts = np.split(place_documents(order, of_window), borders)
    return tuple(map(Documents, starts, lengths))
