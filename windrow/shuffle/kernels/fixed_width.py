"""Fixed-width Arrow columns as NumPy arrays of plain values, and back; the columns of a schema by their width.

The shuffle moves fixed-width values as unsigned integers of the same size, whatever their type. Booleans
become bytes, and validity a byte mask, so NumPy can move all of them into pool memory. Fixed-size lists (and
tensors) have a fixed width if they contain no nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.frame_of_reference import is_packable

# (rows,) values of 1, 2, 4, 8 or 16 bytes, or (rows, width) bytes
PlainRows = NDArray[Any]

_BOOLEAN = pa.bool_().id
_BY_WIDTH = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
# tasks of a job share one schema object, or one for each source of a mixture
_KNOWN_SCHEMAS = 256


def fixed_width_bytes(kind: pa.DataType) -> int:
    """Bytes per row, without validity, of a fixed-width column; 0 for other types."""
    if isinstance(kind, pa.BaseExtensionType):
        return fixed_width_bytes(kind.storage_type)
    if pa.types.is_boolean(kind):
        return 1
    if pa.types.is_dictionary(kind) or pa.types.is_nested(kind):
        return 0
    try:
        bits = int(kind.bit_width)
    except ValueError:
        return 0
    return bits // 8 if bits % 8 == 0 else 0


def rows_view(memory: NDArray[np.uint8], width: int) -> PlainRows:
    """View bytes as rows: (rows,) if a dtype has that width, else (rows, width)."""
    return views_of([memory], width)[0]


def views_of(memory: Sequence[NDArray[np.uint8]], width: int) -> list[PlainRows]:
    """`rows_view` of several columns."""
    word = _BY_WIDTH.get(width)
    if word is None:
        return [each.reshape(-1, width) for each in memory]
    return [each.view(word) for each in memory]


def row_bytes(values: PlainRows) -> int:
    """Bytes per row."""
    return values.itemsize * (int(values.shape[1]) if values.ndim > 1 else 1)


def values_of(array: pa.Array) -> PlainRows:
    """View a fixed-width column as rows; copies only booleans. The values of nulls are arbitrary."""
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    width, data = fixed_width_bytes(storage.type), storage.buffers()[1]
    if data is None:
        return rows_view(np.zeros(width * len(storage), np.uint8), width)
    if pa.types.is_boolean(storage.type):
        return unpack(data, storage.offset, len(storage))
    memory = np.frombuffer(data, np.uint8)[width * storage.offset : width * (storage.offset + len(storage))]
    return rows_view(memory, width)


def validity_of(array: pa.Array) -> NDArray[np.uint8] | None:
    """(rows,) 1 for valid and 0 for null; None if there are no nulls."""
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    return unpack(storage.buffers()[0], storage.offset, len(storage)) if storage.null_count else None


def clear_nulls(values: PlainRows, valid: NDArray[np.uint8], base: int = 0) -> PlainRows:
    """The values with ``base`` for nulls: what lies below them is arbitrary, and need not fit a packing.

    >>> clear_nulls(np.array([7, 99, 8]), np.array([1, 0, 1], np.uint8), base=7)
    array([7, 7, 8])
    """
    mask = valid.astype(np.bool_).reshape(-1, *[1] * (values.ndim - 1))
    cleared: PlainRows = np.where(mask, values, np.array(base, np.int64).astype(values.dtype))
    return cleared


class Validity(NamedTuple):
    """Which rows are valid."""

    bits: NDArray[np.uint8]  # a bit a row: 1 for valid, 0 for null
    nulls: int


def wrap_values(values: PlainRows, kind: pa.DataType, validity: Validity | None) -> pa.Array:
    """Wrap rows as a fixed-width column; copies only booleans."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(wrap_values(values, kind.storage_type, validity))
    if validity is None and kind.id != _BOOLEAN:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], null_count=0)
    data = pa.py_buffer(pack(values) if kind.id == _BOOLEAN else values)
    mask, nulls = wrap_validity(validity)
    return pa.Array.from_buffers(kind, len(values), [mask, data], null_count=nulls)


def wrap_validity(validity: Validity | None) -> tuple[pa.Buffer | None, int]:
    """The validity buffer of an Arrow array, if any, and the number of nulls."""
    return (
        (pa.py_buffer(validity.bits), validity.nulls)
        if validity is not None and validity.nulls
        else (None, 0)
    )


def list_rows_of(array: pa.Array, *, copies: bool = True) -> PlainRows | None:
    """View a column of fixed-size lists as rows; None if it has another type, no rows, or nulls.

    Lists of booleans are unpacked to bytes if ``copies`` is True, else None is returned.
    """
    rows = len(array)
    while not fixed_width_bytes(array.type):
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif not pa.types.is_fixed_size_list(array.type) or not array.type.list_size or array.null_count:
            return None
        else:
            size = array.type.list_size
            array = array.values.slice(array.offset * size, len(array) * size)
    if array.null_count or rows == 0 or (pa.types.is_boolean(array.type) and not copies):
        return None
    memory = values_of(array).view(np.uint8)
    return rows_view(memory.reshape(-1), memory.size // rows)


def wrap_list_rows(memory: NDArray[np.uint8], kind: pa.DataType, rows: int) -> pa.Array:
    """Wrap memory as a column of fixed-size lists, without a copy."""
    if fixed_width_bytes(kind):
        return wrap_values(rows_view(memory, fixed_width_bytes(kind)), kind, None)
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(wrap_list_rows(memory, kind.storage_type, rows))
    values = wrap_list_rows(memory, kind.value_type, rows * kind.list_size)
    return pa.Array.from_buffers(kind, rows, [None], null_count=0, children=[values])


def unpack(bitmap: pa.Buffer, offset: int, length: int) -> NDArray[np.uint8]:
    """The bits of an Arrow bitmap as bytes of 0 and 1."""
    packed = np.frombuffer(bitmap, np.uint8)[offset // 8 : (offset + length + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[offset % 8 : offset % 8 + length]


def pack(values: PlainRows) -> NDArray[np.uint8]:
    """Pack bytes of 0 and 1 into an Arrow bitmap."""
    return np.packbits(values, bitorder="little")


@dataclass(frozen=True, eq=False)
class ColumnWidths:
    """The columns of a schema, by number.

    Attributes
    ----------
    schema
        The schema.
    kinds
        The type of each column.
    widths
        Bytes per row of each column; 0 for those without a fixed width.
    fixed, others
        The columns with and without a fixed width.
    fixed_widths
        (fixed,) bytes per row of those with a fixed width.
    places
        The place of each of them among these.
    plain
        The columns whose values are their memory: those with a fixed width but for booleans and extension types.
    packable
        The places of those that can be frame-of-reference encoded.
    by_width
        The columns with a fixed width, by width, in ascending order.
    """

    schema: pa.Schema
    kinds: tuple[pa.DataType, ...]
    widths: tuple[int, ...]
    fixed: tuple[int, ...]
    others: tuple[int, ...]
    fixed_widths: NDArray[np.int64]
    places: dict[int, int]
    plain: frozenset[int]
    packable: NDArray[np.int64]
    by_width: dict[int, list[int]]


_known: dict[int, ColumnWidths] = {}


def _is_plain(kind: pa.DataType) -> bool:
    return kind.id != _BOOLEAN and not isinstance(kind, pa.BaseExtensionType)


def column_widths(schema: pa.Schema) -> ColumnWidths:
    """The columns of a schema by width; remembered for the schema objects seen last.

    >>> column_widths(pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64()})).by_width
    {8: [0, 2]}
    """
    found = _known.get(id(schema))
    # the entry keeps its schema alive, so that no other one can have its id
    if found is not None and found.schema is schema:
        return found
    kinds = tuple(schema.types)
    widths = tuple(fixed_width_bytes(kind) for kind in kinds)
    by_width: dict[int, list[int]] = {width: [] for width in sorted(set(widths) - {0})}
    for number, width in enumerate(widths):
        if width:
            by_width[width].append(number)
    fixed = tuple(number for number, width in enumerate(widths) if width)
    others = tuple(number for number, width in enumerate(widths) if not width)
    if len(_known) >= _KNOWN_SCHEMAS:
        _known.clear()
    found = _known[id(schema)] = ColumnWidths(
        schema=schema,
        kinds=kinds,
        widths=widths,
        fixed=fixed,
        others=others,
        fixed_widths=np.array([widths[number] for number in fixed], np.int64),
        places={number: at for at, number in enumerate(fixed)},
        plain=frozenset(number for number in fixed if _is_plain(kinds[number])),
        packable=np.flatnonzero([is_packable(kinds[number]) for number in fixed]),
        by_width=by_width,
    )
    return found
