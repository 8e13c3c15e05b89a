"""Columns by which rows are sorted or grouped: which types can be, and how they compare.

Numbers ascend, or descend; NaN comes after them and nulls come last, either way. NaN equals NaN, and a null equals
a null, so each of them is a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.io.catalog.column_selection import make_unknown_column_error

__all__ = ["check_column", "check_key", "find_group_starts", "plain_columns", "sort_rows"]

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


def check_column(schema: pa.Schema, name: object, call: str) -> pa.DataType:
    """Return the type of a column, or raise a PlanError that suggests names."""
    if not isinstance(name, str):
        raise PlanError(f"{call}: {name!r} must be the name of a column")
    if name not in schema.names:
        raise make_unknown_column_error(name, schema.names, call)
    return schema.field(name).type


def check_key(schema: pa.Schema, name: object, call: str) -> None:
    """Raise a PlanError unless rows can be sorted by a column."""
    kind = check_column(schema, name, call)
    if pt.is_dictionary(kind):
        kind = kind.value_type
    if pt.is_floating(kind) and not pt.is_float16(kind):
        return
    if not any(matches(kind) for matches in _SORTABLE) or pt.is_interval(kind):
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
    if keys.num_columns == 0:
        return np.arange(keys.num_rows)
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
