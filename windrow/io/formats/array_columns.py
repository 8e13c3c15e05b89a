"""Columns of the arrays that HDF5 files and Zarr stores hold: their types, values, and cuts of rows along chunks.

What is not a number, time or text of fixed length comes as objects. Their Arrow type is the library's to tell:
``find_leaf`` returns it for a dtype, or None for those of `windrow.io.formats.numpy_types`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.text_types import preserve_embedded_nuls
from windrow.io.catalog.value_sizes import child_types, storage_type
from windrow.io.formats import numpy_types
from windrow.io.formats.numpy_types import wrap_lists

FindLeaf = Callable[[Any], "pa.DataType | None"]

# Rows are cut where the chunks of all arrays end, unless that would make row groups larger than this.
_MAX_ALIGNED_BYTES = 64 * 2**20
# of a value that is stored elsewhere: its address and length
_OBJECT_BYTES = 16


@dataclass(frozen=True)
class ArrayColumn:
    """A column: the array at ``path``, or one field of its structured values."""

    name: str
    path: str
    field: str
    type: pa.DataType

    def select(self, rows: NDArray[Any]) -> pa.Array:
        """The column of some rows of the array, (rows, ...), or of an array that has this field."""
        return to_column(rows[self.field] if self.field and rows.dtype.names else rows, self.type)


def parse_columns(columns: Any) -> tuple[tuple[str, str], ...] | None:
    """The (column, path) pairs of a ``columns=`` that is a dict; None for a list of names or None."""
    if not isinstance(columns, Mapping):
        return None
    pairs = tuple(columns.items())
    if not pairs or not all(isinstance(text, str) and text for pair in pairs for text in pair):
        raise PlanError(f"columns={columns!r} must map at least one column name to the path of an array")
    return tuple((name, path.strip("/")) for name, path in pairs)


def array_type(dtype: np.dtype[Any], shape: tuple[int, ...], find_leaf: FindLeaf) -> pa.DataType:
    """The Arrow type of a column whose rows have this dtype and shape; a ValueError if there is none."""
    if dtype.subdtype is not None:
        base, inner = dtype.subdtype
        return array_type(base, (*shape, *inner), find_leaf)
    leaf = find_leaf(dtype)
    if leaf is None and dtype.names:
        leaf = pa.struct([(name, array_type(dtype[name], (), find_leaf)) for name in dtype.names])
    if leaf is None:
        return numpy_types.column_type(dtype, shape)
    for width in reversed(shape):
        leaf = pa.list_(leaf, width)
    return leaf


def to_column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Convert (rows, ...) values to a column of the type that `array_type` found."""
    storage = leaf = storage_type(kind)
    while pt.is_fixed_size_list(leaf):
        leaf = leaf.value_type
    column = wrap_lists(_leaf_column(values.reshape(-1), leaf), storage, len(values))
    return column if storage is kind else kind.wrap_array(column)


def _leaf_column(flat: NDArray[Any], leaf: pa.DataType) -> pa.Array:
    if pt.is_struct(leaf):
        children = [to_column(flat[field.name], field.type) for field in leaf]
        return pa.StructArray.from_arrays(children, fields=list(leaf))
    if pt.is_list(leaf):
        return _list_column(flat, leaf)
    if not (pt.is_string(leaf) or pt.is_binary(leaf)):
        return numpy_types.to_column(flat)
    if flat.dtype.kind == "O" and len(flat) and isinstance(flat[0], bytes):
        return pa.array(flat.tolist(), pa.binary()).cast(leaf)
    texts = preserve_embedded_nuls(flat) if flat.dtype.kind in "US" else flat.tolist()
    return pa.array(texts, pa.binary() if flat.dtype.kind == "S" else leaf).cast(leaf)


def _list_column(flat: NDArray[Any], leaf: pa.DataType) -> pa.Array:
    lengths = np.fromiter(map(len, flat), np.int64, len(flat))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if offsets[-1] >= 2**31:
        raise pa.ArrowCapacityError("array cannot contain more than 2**31 values in lists")
    values = np.concatenate(flat) if offsets[-1] else np.zeros(0, leaf.value_type.to_pandas_dtype())
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), numpy_types.to_column(values))


def holds_times(kind: pa.DataType) -> bool:
    """Whether values can be NaT, which becomes null."""
    kind = storage_type(kind)
    return pt.is_temporal(kind) or any(map(holds_times, child_types(kind)))


def stored_row_bytes(dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """Bytes of a row as the array stores it, uncompressed; of values of variable length, those of their address."""
    return int(np.prod(shape, dtype=np.int64)) * (_OBJECT_BYTES if dtype.hasobject else dtype.itemsize)


def choose_row_step(rows: int, chunks: Sequence[tuple[int, int]], target_bytes: int) -> int:
    """The rows of a row group: whole chunks of every array, up to ``target_bytes`` if one chunk is not larger.

    ``chunks`` has, by array, the rows of a chunk and the bytes of a row. Where whole chunks of all arrays would take
    more than 64 MiB, those of the array with the largest rows decide.

    >>> choose_row_step(1000, [(30, 8), (20, 8)], 2_000)
    120
    >>> choose_row_step(1000, [(1, 8)], 80)
    10
    """
    row_bytes = max(1, sum(size for _, size in chunks))
    step = lcm(*(length for length, _ in chunks))
    if min(step, rows) * row_bytes > _MAX_ALIGNED_BYTES:
        step = max(chunks, key=lambda chunk: (chunk[1], chunk[0]))[0]
    step = max(1, min(step, rows))
    return step * max(1, target_bytes // (step * row_bytes))
