"""`WindowSort`: the rows of each window in the order of some columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.tasks.key_columns import check_key, plain_columns, sort_rows

__all__ = ["KEY_COPIES", "SORTED_ROW_BYTES", "WindowSort"]

# Of a window that is being sorted: the positions of each row before and after it, with what computes them, and the keys
# in the order of the blocks, in the order before the sort, and as the sort orders them.
SORTED_ROW_BYTES, KEY_COPIES = 80, 3


@dataclass(frozen=True)
class WindowSort:
    """The arguments of `DatasetPipeline.sort_each_window`, checked."""

    keys: tuple[str, ...]
    descending: tuple[bool, ...]  # for each key

    def __str__(self) -> str:
        names = repr(self.keys[0]) if len(self.keys) == 1 else repr(list(self.keys))
        if not any(self.descending):
            return f"sort_each_window({names})"
        down = self.descending[0] if len(self.descending) == 1 else list(self.descending)
        return f"sort_each_window({names}, descending={down!r})"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise PlanError if rows with this schema cannot be sorted."""
        for name in self.keys:
            check_key(schema, name, str(self))

    def keys_of(self, table: pa.Table, origin: str) -> pa.Table:
        """The keys of the rows of a block, as `plain_columns`."""
        if not table.num_rows:
            # not transformed, so its schema means nothing
            return pa.table({})
        try:
            self.check_schema(table.schema)
        except PlanError as error:
            raise TransformError(f"{origin}: {error}") from error
        return plain_columns(table, self.keys)

    def epoch_rows(
        self, keys: Sequence[pa.Table], rows: NDArray[np.int64], first_row: int
    ) -> list[NDArray[np.int64]]:
        """For each block of a window, (rows,) the rows of the epoch at which its rows are delivered.

        Parameters
        ----------
        keys
            `keys_of` each block of the window.
        rows
            (rows of the window,) where its rows, block after block, would be delivered without this sort, as rows
            of the epoch. Rows with equal keys keep that order.
        first_row
            The window's first row of the epoch.
        """
        filled = [each for each in keys if each.num_rows]
        if not filled:
            return [np.zeros(0, np.int64) for _ in keys]
        unsorted = np.empty(len(rows), np.int64)
        unsorted[rows - first_row] = np.arange(len(rows))
        joined = pa.concat_tables(filled).take(pa.array(unsorted))
        order = unsorted[sort_rows(joined, self.descending)]
        del joined, unsorted
        placed = np.empty(len(rows), np.int64)
        placed[order] = np.arange(first_row, first_row + len(rows))
        borders = np.cumsum([each.num_rows for each in keys])[:-1]
        return np.split(placed, borders)

    @staticmethod
    def held_bytes(keys: pa.Table) -> int:
        """What the coordinator holds for the rows of a block while it sorts their window."""
        return SORTED_ROW_BYTES * int(keys.num_rows) + KEY_COPIES * arrow_bytes(keys)
