"""Rows that stay in their order: where one shard reads in stored order in this process, nothing has to be moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.buffer_pool import BufferPool
from windrow.core.chosen_rows import take_rows
from windrow.core.errors import WindrowError
from windrow.shuffle.kernels.arrow_columns import join, join_each, move_column
from windrow.shuffle.kernels.fixed_width import column_widths
from windrow.shuffle.order.runs import Run, WindowRuns

# A table of views that keep more memory than this many times its rows is copied.
_MAX_KEPT = 2


@dataclass(frozen=True, eq=False)
class OrderedRows:
    """Consecutive rows of one run, as a task made them: a view. Stands for a `MapOutput`."""

    rows: pa.Table
    run: int  # its index within the slice
    place: int  # of the first row within the run

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)

    @property
    def nbytes(self) -> int:
        return arrow_bytes(self.rows)

    @property
    def unpacked_bytes(self) -> int:
        """The same: nothing is encoded."""
        return self.nbytes


class OrderedOutputs(tuple[OrderedRows, ...]):
    """The rows of a slice, in any order."""


def are_in_order(layouts: Sequence[WindowRuns]) -> bool:
    """Whether one shard gets all rows, so that rows in stored order are in the order of its stream."""
    return len(layouts) == 1 and layouts[0].assignment.shards == 1 and layouts[0].assignment.start_row == 0


def check_movable(row: pa.Table, pool: BufferPool) -> None:
    """Raise PlanError if rows like this one could not be moved, as other shards and executors would."""
    for at in column_widths(row.schema).others:
        move_column(join(row.select([at])), np.zeros(row.num_rows, np.int64), row.schema.names[at], pool)


def cut_into_runs(table: pa.Table, first_row: int, layout: WindowRuns) -> list[list[OrderedRows]]:
    """Cut rows of a window into those of each run, by slice.

    Parameters
    ----------
    table
        Rows of which the first one is row ``first_row`` of the epoch; at least one column.
    layout
        The runs of the window, for the only shard.
    """
    if table.get_total_buffer_size() > _MAX_KEPT * arrow_bytes(table):
        table = take_rows(table, np.arange(table.num_rows))
    by_slice: list[list[OrderedRows]] = [[] for _ in range(layout.slices)]
    for run in layout.runs(layout.shards[0]):
        start, stop = max(run.place, first_row), min(run.place + run.rows, first_row + table.num_rows)
        if start < stop:
            rows = table.slice(start - first_row, stop - start)
            by_slice[run.slice].append(OrderedRows(rows, run.index, start - run.place))
    return by_slice


def join_run(outputs: OrderedOutputs, run: Run, rows: slice) -> pa.RecordBatch:
    """Return some rows of a run, by their places: views where they lie in one piece, which must not be written to."""
    pieces = sorted((each for each in outputs if each.run == run.index), key=lambda each: each.place)
    ends = np.cumsum([each.num_rows for each in pieces])
    if [each.place for each in pieces] != [0, *ends[:-1].tolist()] or ends[-1] != run.rows:
        raise WindrowError(f"run {run.index} needs {run.rows} places, each once; its pieces hold others")
    table = pa.concat_tables([each.rows for each in pieces]).slice(rows.start, rows.stop - rows.start)
    return pa.RecordBatch.from_arrays(join_each(table), schema=table.schema)
