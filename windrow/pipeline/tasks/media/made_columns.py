"""Columns that are filled row by row: of arrays of one shape, in one array, or of several shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.variable_tensors import to_tensor_column
from windrow.io.formats.numpy_types import to_column


class FixedColumn:
    """(rows, ...) values of one shape, in one array; it ends with the last row that was put."""

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._values: NDArray[Any] = np.empty((rows, *shape), dtype)
        self._missing: list[int] = []
        self._rows = 0

    def row(self, row: int) -> NDArray[Any]:
        """The values of a row, to be filled in place."""
        self._rows = row + 1
        return self._values[row]

    def put(self, row: int, value: NDArray[Any] | None) -> None:
        """Set a row; None is null."""
        if value is None:
            self._missing.append(row)
        self.row(row)[...] = 0 if value is None else value

    def finish(self) -> Any:
        """An array, which becomes a column without a copy; a column if there are nulls."""
        values = self._values if self._rows == len(self._values) else self._values[: self._rows]
        return _with_nulls(to_column(values), self._missing) if self._missing else values


class VariableColumn:
    """Arrays of several shapes."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._values: list[NDArray[Any] | None] = []

    def put(self, row: int, value: NDArray[Any] | None) -> None:
        """Append a row; None is null."""
        self._values.append(value)

    def finish(self) -> pa.Array:
        """A column of tensors of several shapes, or of lists where ``kind`` is a type of lists."""
        if isinstance(self._kind, pa.BaseExtensionType):
            return to_tensor_column(self._values, self._kind)
        return make_lists(self._values, self._kind)


MadeColumn = FixedColumn | VariableColumn


def make_lists(rows: Sequence[NDArray[Any] | None], kind: pa.DataType) -> pa.Array:
    """A column of lists of numbers, without an object for each value.

    >>> make_lists([np.array([1, 2]), None, np.array([3])], pa.list_(pa.int32())).to_pylist()
    [[1, 2], None, [3]]
    """
    lengths = [0 if row is None else len(row) for row in rows]
    ends = np.cumsum([0, *lengths], dtype=np.int64)
    is_large = pa.types.is_large_list(kind)
    if not is_large and ends[-1] >= 2**31:
        raise ValueError(
            f"{ends[-1]:,} values do not fit into one column of lists: give a smaller batch_size="
        )
    present = [row for row in rows if row is not None]
    dtype = kind.value_type.to_pandas_dtype()
    flat = np.concatenate(present).astype(dtype, copy=False) if present else np.zeros(0, dtype)
    values = pa.Array.from_buffers(kind.value_type, len(flat), [None, pa.py_buffer(flat)], null_count=0)
    missing = [row for row, value in enumerate(rows) if value is None]
    offsets = pa.py_buffer(ends.astype(np.int64 if is_large else np.int32))
    buffers = [_validity(len(rows), missing), offsets]
    return pa.Array.from_buffers(kind, len(rows), buffers, null_count=len(missing), children=[values])


def _with_nulls(column: Any, missing: list[int]) -> pa.Array:
    kind = column.type
    storage = column.storage if isinstance(kind, pa.BaseExtensionType) else column
    mask = _validity(len(column), missing)
    made = pa.Array.from_buffers(storage.type, len(column), [mask], len(missing), children=[storage.values])
    return pa.ExtensionArray.from_storage(kind, made) if isinstance(kind, pa.BaseExtensionType) else made


def _validity(rows: int, missing: list[int]) -> pa.Buffer | None:
    if not missing:
        return None
    valid = np.ones(rows, np.bool_)
    valid[missing] = False
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
