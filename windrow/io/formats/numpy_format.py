"""NumPy files: ``.npy`` with one array, and ``.npz`` with several of equal length."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.npy_arrays import StoredArray, find_arrays, read_rows
from windrow.io.formats.numpy_types import column_type, row_memory_bytes, to_column
from windrow.io.formats.row_group_reader import PART_BYTES, RowGroupFormat, corruption_is_invalid

__all__ = ["NumpyFormat"]


@dataclass(frozen=True)
class NumpyFormat(RowGroupFormat):
    """Arrays whose first dimension is rows; row groups are row ranges of some MiB.

    ``column`` names the array of a ``.npy`` file; ``.npz`` members and fields of structured arrays have
    their own names.
    """

    joins_files = True
    cut_sizes = None
    corruption = (
        ValueError,
        KeyError,
        EOFError,
        NotImplementedError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    )

    column: str = "data"
    name: str = "NumPy"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise PlanError(f"column={self.column!r} must be the name of a column")

    @property
    def options(self) -> str:
        """The column name of unnamed arrays."""
        return f"column={self.column!r}"

    def summarise(self, file: OpenFile) -> FragmentFacts:
        """Read the array headers of a file."""
        arrays = find_arrays(file)
        _check_lengths(arrays)
        columns = {name: column for array in arrays for name, column in self._columns(array).items()}
        rows = [last - first for first, last in _cut_rows(arrays)]
        schema = pa.schema([pa.field(name, column_type(*column)) for name, column in columns.items()])
        row_bytes = sum(array.row_bytes for array in arrays)
        variable = {
            field.name: 2 * ([count * row_memory_bytes(*columns[field.name]) for count in rows],)
            for field in schema
            if fixed_bits(field.type) is None
        }
        # NaT becomes null, and headers do not count NaTs
        nulls = {name: None if dtype.kind in "mM" else 0 for name, (dtype, _) in columns.items()}
        return FragmentFacts(schema, rows, [count * row_bytes for count in rows], variable, nulls)

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read row ranges one by one."""
        with corruption_is_invalid(self.corruption):
            every = find_arrays(file)
            arrays = [array for array in every if set(self._names(array)) & set(schema.names)] or every[:1]
            cuts = _cut_rows(every)[start:stop]
            file.fetch([span for cut in cuts for array in arrays for span in array.ranges(*cut)])
            for first, last in cuts:
                yield self._table(file, arrays, first, last)

    def _table(self, file: OpenFile, arrays: Sequence[StoredArray], first: int, last: int) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        for array in arrays:
            rows = read_rows(file, array, first, last)
            fields = array.dtype.names
            values = {name: rows[name] for name in fields} if fields else {self._names(array)[0]: rows}
            columns.update({name: to_column(column) for name, column in values.items()})
        return pa.table(columns)

    def _columns(self, array: StoredArray) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The dtype and row shape of each column that an array provides."""
        if not array.dtype.names:
            return {self._names(array)[0]: (array.dtype, array.shape[1:])}
        if array.name or len(array.shape) != 1:
            raise ValueError(
                "holds a structured array in an .npz file or of several dimensions: save its fields"
            )
        fields = {name: array.dtype[name] for name in array.dtype.names}
        return {name: (kind.base, kind.shape) for name, kind in fields.items()}

    def _names(self, array: StoredArray) -> tuple[str, ...]:
        return array.dtype.names or (array.name or self.column,)


def _check_lengths(arrays: Sequence[StoredArray]) -> None:
    if not arrays:
        raise ValueError("holds no arrays")
    for array in arrays:
        what = f"array {array.name!r}" if array.name else "its array"
        if not array.shape:
            raise ValueError(f"has no rows: {what} is a single value; save arrays with a dimension of rows")
        if array.shape[0] != arrays[0].shape[0]:
            raise ValueError(
                f"has {array.shape[0]:,} rows of {array.name!r} and {arrays[0].shape[0]:,} of {arrays[0].name!r}: "
                "save arrays of equal first dimension, or in several files"
            )


def _cut_rows(arrays: Sequence[StoredArray]) -> list[tuple[int, int]]:
    """Split rows into ranges of some MiB; a compressed array has to be read from its beginning: one range."""
    rows = arrays[0].shape[0]
    step = max(1, PART_BYTES // max(1, sum(array.row_bytes for array in arrays)))
    if any(array.compressed_range is not None for array in arrays):
        step = max(1, rows)
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]
