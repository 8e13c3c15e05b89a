"""Converts the result of a map function to an Arrow table.

An array returned as the same object that the function got is the same column, with its
type. The type of any other value depends on its kind, never on single values, so
that all blocks get the same schema:

- an array with the NumPy type in which the function got the column of this name keeps the
  column's Arrow type (so datetime64 keeps a time zone, text keeps large_string);
- lists and objects keep the column's type if they are of its kind (text, decimals,
  integers, ...) and convert without loss;
- everything else gets the type that Arrow infers; arrays of two or more dimensions
  become ``fixed_shape_tensor`` columns, or ``arrow.variable_shape_tensor`` if their
  shapes differ or the column had that type.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import TransformError
from windrow.core.offsets import check_dictionary_indices
from windrow.pipeline.tasks.held_arrays import as_immutable
from windrow.pipeline.tasks.to_arrow import to_arrow

_ALLOWED = "a dict of arrays or lists, a pandas DataFrame, a pyarrow Table or RecordBatch"


def result_to_table(
    result: object, batch: pa.RecordBatch, batch_arrays: Mapping[str, NDArray[Any]] | None = None
) -> pa.Table:
    """Convert what a function returned for ``batch``.

    ``batch_arrays`` holds the arrays that the function got, if it got NumPy arrays. Raises a `TransformError`
    for a result of another type, columns of unequal length, or a value that Arrow cannot hold.
    """
    if isinstance(result, (pa.Table, pa.RecordBatch)):
        items: Iterable[tuple[Any, Any]] = zip(result.schema.names, result.columns, strict=True)
    elif _is_frame(result) or isinstance(result, Mapping):
        items = result.items()  # type: ignore[attr-defined]
    else:
        raise TransformError(f"returned {_describe(result)}; return {_ALLOWED}")
    unchanged = {id(array): name for name, array in (batch_arrays or {}).items()}
    columns: dict[str, pa.ChunkedArray] = {}
    fresh = set()
    for name, values in items:
        _check_name(name, columns)
        same = unchanged.get(id(values))
        columns[name] = _chunked(batch.column(same)) if same is not None else _column(name, values, batch)
        if isinstance(values, (np.ndarray, list, tuple)):
            # see `copy_held`; lists become arrays of their own
            fresh.add(name)
    _check_lengths(columns)
    return _assemble(columns, batch, fresh)


def _is_frame(result: object) -> bool:
    # Without pandas imported, or while another thread imports it, the result cannot be a frame.
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(result, frame)


def _check_name(name: object, columns: Mapping[str, pa.ChunkedArray]) -> None:
    if not isinstance(name, str):
        raise TransformError(f"returned a column named {name!r}; column names are strings")
    if name in columns:
        raise TransformError(f"returned two columns named {name!r}; give each its own name")


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _column(name: str, values: Any, batch: pa.RecordBatch) -> pa.ChunkedArray:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        column = _chunked(values)
        _check_dictionaries(name, column)
        return column
    if isinstance(values, (str, bytes, Mapping)) or not (
        isinstance(values, (list, tuple)) or getattr(values, "ndim", 0) > 0
    ):
        raise TransformError(
            f"returned {_describe(values)} as column {name!r}; return an array or a list, one value per row"
        )
    original = batch.column(name) if name in batch.schema.names else None
    try:
        return to_arrow(
            values, None if original is None else original.type, nan_is_null=_nan_is_null(values, original)
        )
    # RuntimeError: of torch, for a tensor that requires grad
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError) as exc:
        raise TransformError(
            f"returned {_describe(values)} as column {name!r}, which Arrow cannot hold "
            f"({type(exc).__name__}: {exc}); return numbers, text, bytes, times, or lists of these, "
            "all of one type"
        ) from exc


def _check_dictionaries(name: str, column: pa.ChunkedArray) -> None:
    try:
        check_dictionary_indices(name, column)
    except pa.ArrowInvalid as exc:
        raise TransformError(
            f"returned a dictionary array with an index that its dictionary does not have ({exc}); make it with "
            "pa.DictionaryArray.from_arrays(indices, dictionary), which checks indices unless safe=False"
        ) from exc


def _nan_is_null(values: Any, original: pa.Array | None) -> bool:
    """Whether NaN in a pandas Series means null: not in floats if the original column had no nulls."""
    if not hasattr(values, "iloc"):
        return False
    is_float = isinstance(values.dtype, np.dtype) and values.dtype.kind == "f"
    return not is_float or (original is not None and original.null_count > 0)


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    name = type(value).__qualname__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _check_lengths(columns: Mapping[str, pa.ChunkedArray]) -> None:
    if not columns:
        raise TransformError(f"returned no columns; return {_ALLOWED} with at least one column")
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name!r} has {len(column)}" for name, column in columns.items())
        raise TransformError(
            f"returned columns of unequal length: {lengths}; return one value per row in each"
        )


def _assemble(
    columns: Mapping[str, pa.ChunkedArray], batch: pa.RecordBatch, fresh: Collection[str]
) -> pa.Table:
    batch_buffers = {buffer.address for column in batch.columns for buffer in column.buffers() if buffer}
    fields = [_field(name, column, batch.schema) for name, column in columns.items()]
    arrays = []
    for name, column in columns.items():
        if not _shares_buffers(column, batch_buffers):
            column = as_immutable(column) if name in fresh else _copied(column)
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=batch.schema.metadata))


def _shares_buffers(column: pa.ChunkedArray, batch_buffers: set[int]) -> bool:
    return all(
        buffer is None or buffer.address in batch_buffers
        for chunk in column.chunks
        for buffer in chunk.buffers()
    )


def _copied(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Copy values whose memory the function may use again, such as that of its own buffer."""
    try:
        # a concatenation of several arrays is a new one
        chunks = [pa.concat_arrays([chunk, chunk.slice(0, 0)]) for chunk in column.chunks]
    except pa.ArrowNotImplementedError:
        return column
    return as_immutable(pa.chunked_array(chunks, type=column.type))


def _field(name: str, column: pa.ChunkedArray, schema: pa.Schema) -> pa.Field:
    """The original field, with its metadata, for a column of its name and type."""
    if name in schema.names and schema.field(name).type == column.type:
        field = schema.field(name)
        return field if field.nullable or not column.null_count else field.with_nullable(True)
    return pa.field(name, column.type)
