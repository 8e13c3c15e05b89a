"""Measures rows by a column, its numbers or the lengths of its values, for `Balance`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.delivery.to_numpy import column_to_numpy, is_list, list_offsets
from windrow.pipeline.tasks.failed_rows import checking_rows

_MAX_FLOAT = float(np.finfo(np.float32).max)


def check_measurable(schema: pa.Schema, column: str, origin: str = "") -> None:
    """Raise PlanError if rows with this schema cannot be measured by a column; ``origin`` begins the message."""
    if column not in schema.names:
        raise PlanError(
            f"{origin}there is no column {column!r} to balance by, but there are {', '.join(map(repr, schema.names))}"
        )
    kind = schema.field(column).type
    if not (_is_number(kind) or _has_length(kind)):
        raise PlanError(
            f"{origin}column {column!r} is {kind}: Balance takes a column of numbers, lists, text or binary values"
        )


def measure_rows(table: pa.Table, column: str, origin: str, caller: str = "Balance") -> NDArray[np.float32]:
    """(rows,) the number in a column, or the length of its value: items of a list, bytes of text and binary values.

    Raises
    ------
    TransformError
        If the column has nulls, negative numbers or NaN; names it, ``caller`` and ``origin``, the block.
    """
    if not table.num_rows:
        # a skipped block has no columns
        return np.zeros(0, np.float32)
    where = f"{caller}, {origin}: "
    with checking_rows(where):
        check_measurable(table.schema, column)
    values = table.column(column)
    if values.null_count:
        raise TransformError(f"{where}column {column!r} has nulls: fill them, or filter such rows out")
    chunks = [_measure(chunk) for chunk in values.chunks]
    found = np.concatenate([np.zeros(0), *chunks])
    is_valid = (found >= 0) & (found <= _MAX_FLOAT)
    if not is_valid.all():
        wrong = found[~is_valid][0]
        raise TransformError(f"{where}column {column!r} holds {wrong:g}: lengths are numbers of 0 or more")
    return found.astype(np.float32)


def _measure(values: pa.Array) -> NDArray[np.float64]:
    kind = values.type
    if pa.types.is_fixed_size_list(kind):
        return np.full(len(values), kind.list_size, np.float64)
    if is_list(kind):
        return np.diff(list_offsets(values)).astype(np.float64)
    if not _is_number(kind):
        import pyarrow.compute as pc

        values = pc.binary_length(values)
    return column_to_numpy(values, writable=False).astype(np.float64)


def _has_length(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_list(kind) or is_text or types.is_binary(kind) or types.is_large_binary(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
