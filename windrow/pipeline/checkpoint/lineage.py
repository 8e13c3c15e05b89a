"""Row lineage: where the rows of an epoch are stored, computed from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError, TransformError
from windrow.core.integers import check_count
from windrow.core.source import RowOrigin, TracingSource
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.failed_rows import add_origin, are_in_files, name_stored_row
from windrow.shuffle.order.window_order import order_window


class Lineage:
    """Maps rows of a job's epochs to the stored rows that they come from.

    Reads nothing if the manifest states how many rows each block delivers. With a filter, its
    columns are read once to count rows, and again for the requested blocks. ``corrupt`` blocks count
    as having no rows.
    """

    def __init__(self, job: Job, corrupt: Sequence[int] = ()) -> None:
        if not isinstance(job.source, TracingSource):
            raise PlanError(f"{job.source!r} cannot trace where its rows are stored")
        self._source: TracingSource = job.source
        if job.mixture is not None:
            raise PlanError(
                "a mixture does not tell where its rows are stored: give each source options(row_id_column=...), and "
                "ask the source for row_lineage()"
            )
        self._program = Program(job, 1, False, (0,))
        self.corrupt = tuple(corrupt)
        self._rows: NDArray[np.int64] | None = None

    @property
    def total(self) -> int:
        """Rows per epoch."""
        return int(self._counts.sum())

    def epoch_lineage(self, epoch: int, start: int, stop: int) -> list[RowOrigin]:
        """The origins of rows [start, stop) of an epoch's order."""
        number = check_count(epoch, "epoch", least=0)
        first, last = check_count(start, "start", least=0), check_count(stop, "stop", least=0)
        epochs = self._program.job.epochs
        if epochs is not None and number >= epochs:
            raise PlanError(f"epoch={epoch}: the pipeline has {epochs} epochs, numbered from 0")
        if not first <= last <= self.total:
            raise PlanError(f"rows [{first:,}, {last:,}) do not lie in an epoch of {self.total:,} rows")
        return self.find(number, np.arange(first, last, dtype=np.int64))

    def find(self, epoch: int, rows: NDArray[np.int64]) -> list[RowOrigin]:
        """The origins of rows of an epoch's order, given by number; in the order given."""
        numbers = np.empty(len(rows), dtype=np.int64)
        for at, block, within in self._blocks(epoch, rows):
            numbers[at] = self._source.row_numbers(block, within)
        return self._source.row_lineage(numbers)

    def origins(self, numbers: Iterable[int]) -> list[RowOrigin]:
        """The origins of rows, given by row id."""
        found = np.array([check_count(number, "row id", least=0) for number in numbers], dtype=np.int64)
        stored = self._source.identity().rows
        if found.max(initial=-1) >= stored:
            raise PlanError(f"there is no row {found.max():,}: {stored:,} rows are stored")
        return self._source.row_lineage(found)

    @property
    def _counts(self) -> NDArray[np.int64]:
        if self._rows is None:
            job = self._program.job
            if job.packing is not None:
                raise PlanError(
                    "pack() delivers sequences of tokens, which are no stored rows: keep a column that names each "
                    "document, such as that of options(row_id_column=...) before pack(), by giving it to pack() too"
                )
            if job.sort is not None:
                raise PlanError(
                    f"{job.sort} delivers rows by their values, which are not in the plan: keep the column of "
                    "options(row_id_column=...), and pass its ids to row_lineage()"
                )
            changing = [stage.name for stage in job.before if not stage.preserves_rows]
            if changing:
                raise PlanError(
                    f"{changing[0]} changes which rows there are, so their places do not tell where they are stored: "
                    "use options(row_id_column=...), and keep that column"
                )
            self._rows = self._source.count_blocks().copy()
            self._rows[list(self.corrupt)] = 0
        return self._rows

    def _blocks(
        self, epoch: int, rows: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.intp], int, NDArray[np.int64]]]:
        """For each block, which of ``rows`` it delivers, and their row numbers within the block."""
        plan, counts, seed = self._program.plan(epoch), self._counts, self._program.job.row_seed
        ends = np.append(0, np.cumsum(counts[plan.blocks]))[plan.starts]
        windows = np.searchsorted(ends, rows, side="right") - 1
        for window in np.unique(windows).tolist():
            (at,) = np.nonzero(windows == window)
            blocks = plan.window_blocks(window)
            before = np.append(0, np.cumsum(counts[blocks]))
            first = int(ends[window])
            order = order_window(seed=seed, epoch=epoch, window=window, rows=int(before[-1]), first_row=first)
            stored = order.stored_rows(rows[at])
            of_window = np.searchsorted(before, stored, side="right") - 1
            for place in np.unique(of_window).tolist():
                (some,) = np.nonzero(of_window == place)
                yield at[some], int(blocks[place]), stored[some] - before[place]


def name_failed_row(error: BaseException, job: Job, corrupt: Sequence[int]) -> None:
    """Complete the error of a transform by where its row is stored, if the plan and the manifest tell it."""
    if not isinstance(error, TransformError) or error._failed_row is None or job.mixture is not None:
        return
    row = error._failed_row
    if row.epoch is None:
        name_stored_row(error, job.source)
    elif job.rows_stated and are_in_files(job.source):
        # a plan that cannot tell it must not hide the error
        with suppress(Exception):
            add_origin(error, Lineage(job, corrupt).find(row.epoch, np.array([row.row])))
