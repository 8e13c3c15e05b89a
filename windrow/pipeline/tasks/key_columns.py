"""Columns by which rows are sorted or grouped, and `WindowSort`: which types can be keys, and how they compare.

Numbers ascend, or descend; NaN comes after them and nulls come last, either way. NaN equals NaN, and a null equals
a null, so each of them is a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.chosen_rows import take_rows
from windrow.core.errors import PlanError
from windrow.io.catalog.column_selection import make_unknown_column_error
from windrow.pipeline.tasks.failed_rows import checking_rows

Ints = NDArray[np.int64]
_SORTABLE = (
    pt.is_integer,
    pt.is_boolean,
    pt.is_decimal,
    pt.is_string,
    pt.is_large_string,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_fixed_size_binary,
    pt.is_temporal,
    pt.is_null,
)
# Of a window that is being sorted: the positions of each row before and after it, with what computes them, and the keys
# in the order of the blocks, in the order before the sort, and as the sort orders them.
SORTED_ROW_BYTES, KEY_COPIES = 80, 3


def check_column(schema: pa.Schema, name: object, call: str) -> pa.DataType:
    """Return the type of a column, or raise a PlanError that suggests names."""
    if not isinstance(name, str):
        raise PlanError(f"{call}: {name!r} must be the name of a column")
    if name not in schema.names:
        raise make_unknown_column_error(name, schema.names, call)
    return schema.field(name).type


def is_comparable(kind: pa.DataType) -> bool:
    """Whether values of a type can be sorted, grouped and compared."""
    if pt.is_dictionary(kind):
        kind = kind.value_type
    if pt.is_floating(kind):
        return not pt.is_float16(kind)
    return any(matches(kind) for matches in _SORTABLE) and not pt.is_interval(kind)


def check_key(schema: pa.Schema, name: object, call: str) -> None:
    """Raise a PlanError unless rows can be sorted by a column."""
    kind = check_column(schema, name, call)
    if not is_comparable(kind):
        raise PlanError(
            f"{call}: column {name!r} is {kind}, which has no order here: use map_batches() to make a column of "
            "numbers, text, bytes, decimals, booleans or times of it"
        )


def plain_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return columns as one array each, dictionaries decoded."""
    columns = []
    for name in names:
        column = table.column(name)
        if pt.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        columns.append(column.combine_chunks())
    return pa.table(columns, names=[str(place) for place in range(len(names))])


def sort_rows(keys: pa.Table, descending: Sequence[bool]) -> Ints:
    """(rows,) the rows in stable order by `plain_columns`, nulls last."""
    import pyarrow.compute as pc

    # nulls come last by default; pyarrow 25 renamed the argument that says so
    orders = ["descending" if down else "ascending" for down in descending]
    places = [
        (name, order)
        for name, order, kind in zip(keys.column_names, orders, keys.schema.types, strict=True)
        # all values are equal, and Arrow cannot sort by them along with others
        if not pt.is_null(kind)
    ]
    if not places:
        return np.arange(keys.num_rows)
    if len(places) == 1:
        ((name, order),) = places
        # Arrow sorts an array faster than a table
        found = pc.sort_indices(keys.column(name).combine_chunks(), sort_keys=[("", order)])
    else:
        found = pc.sort_indices(keys, sort_keys=places)
    return found.to_numpy().view(np.int64)


def find_group_starts(keys: pa.Table) -> Ints:
    """(groups,) the first row of each group of rows with equal keys, given sorted `plain_columns`."""
    rows = keys.num_rows
    if not rows:
        return np.empty(0, np.int64)
    changes = np.zeros(rows, np.bool_)
    changes[0] = True
    for column in keys.columns:
        changes[1:] |= _differs(column.combine_chunks())
    return np.flatnonzero(changes)


def _differs(column: pa.Array) -> NDArray[np.bool_]:
    """(rows - 1,) whether each row's value differs from that of the row before."""
    import pyarrow.compute as pc

    if pt.is_null(column.type) or len(column) < 2:
        return np.zeros(max(0, len(column) - 1), np.bool_)
    before, after = column[:-1], column[1:]
    found = pc.fill_null(pc.not_equal(before, after), False).to_numpy(zero_copy_only=False)
    if pt.is_floating(column.type):
        nan = pc.fill_null(pc.is_nan(column), False).to_numpy(zero_copy_only=False)
        found = found & ~(nan[:-1] & nan[1:])
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        found = found | (null[:-1] != null[1:])
    return found


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
        with checking_rows(f"{origin}: "):
            self.check_schema(table.schema)
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
        joined = take_rows(pa.concat_tables(filled), unsorted)
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
