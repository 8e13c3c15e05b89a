"""Moves text, lists and structs with the C kernels: the values below each row, at every level, are one range.

A column is taken apart into arrays of plain values. Those that belong to a row are consecutive, also below lists of
lists, so moving a row is one copy an array. Dictionaries, maps, unions and views are left to Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.native_libraries import address_of
from windrow.core.text_types import fits_offsets, offset_width
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.fixed_width import (
    Validity,
    fixed_width_bytes,
    pack,
    rows_view,
    unpack,
    wrap_validity,
    wrap_values,
)

_WRONG_OFFSETS = "offsets decrease, or are outside the values"


class Targets(NamedTuple):
    """The rows of a part that move, and where to."""

    first: int  # of the rows to move
    rows: int
    address: int  # of the target of each, of 4 bytes


def can_move_nested(kind: pa.DataType) -> bool:
    """Whether `move_nested` supports a type; needs the C kernels."""
    return native.LIBRARY is not None and _is_supported(kind)


def _is_supported(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_supported(kind.storage_type)
    if pt.is_struct(kind):
        return kind.num_fields > 0 and all(_is_supported(field.type) for field in kind.fields)
    if _is_list(kind) or pt.is_fixed_size_list(kind):
        return _is_supported(kind.value_type)
    return bool(fixed_width_bytes(kind) or offset_width(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


class _Ranges(NamedTuple):
    """Which of some items belong to each row: those from ``offsets[i]`` to ``offsets[i + 1]``."""

    offsets: NDArray[Any]  # (rows + 1,) int32 or int64
    items: int  # of all items, which no offset exceeds


@dataclass(frozen=True, eq=False)
class NestedColumn:
    """A column, or what is nested in it, of one part."""

    items: int
    ranges: _Ranges | None  # None: item i belongs to row i
    validity: tuple[pa.Buffer, int] | None  # with the offset in bits of the first item; None: no nulls
    values: NDArray[np.uint8] | None  # of a leaf: bytes, of text all of them
    lengths: NDArray[Any] | None  # of lists or text below lists: the items of each, int32 or int64
    children: tuple[NestedColumn, ...]

    @classmethod
    def of(cls, array: pa.Array, name: str) -> NestedColumn:
        """Take a column apart; a `SourceError` if offsets decrease or are outside the values."""
        return _take_apart(array, None, name)


def _take_apart(array: pa.Array, ranges: _Ranges | None, name: str) -> NestedColumn:
    if isinstance(array, pa.ExtensionArray):
        return _take_apart(array.storage, ranges, name)
    kind, buffers, items = array.type, array.buffers(), len(array)
    validity = (buffers[0], array.offset) if buffers[0] is not None and array.null_count else None
    if validity is not None and 8 * buffers[0].size < array.offset + items:
        raise _make_corrupt_error(name, f"its {buffers[0].size} bytes of validity are too few")
    if pt.is_struct(kind):
        fields = [array.field(number) for number in range(kind.num_fields)]
        if any(len(field) < items for field in fields):
            raise _make_corrupt_error(name, "a field has fewer values than its structs")
        children = tuple(_take_apart(field, ranges, name) for field in fields)
        return NestedColumn(items, ranges, validity, None, None, children)
    if pt.is_fixed_size_list(kind):
        size = kind.list_size
        values = array.values.slice(array.offset * size, items * size)
        starts = np.arange(items + 1) * size
        below = _compose(ranges, starts, len(values), name)
        return NestedColumn(items, ranges, validity, None, None, (_take_apart(values, below, name),))
    width = fixed_width_bytes(kind)
    if width:
        return NestedColumn(items, ranges, validity, _leaf_bytes(array, width, name), None, ())
    if _is_list(kind):
        child = array.values
        offsets = _offsets_of(buffers[1], 8 if pt.is_large_list(kind) else 4, array, name)
        total = len(child)
    else:
        child = None
        offsets = _offsets_of(buffers[1], offset_width(kind), array, name)
        total = 0 if buffers[2] is None else buffers[2].size
    below = _compose(ranges, offsets, total, name)
    lengths = None if ranges is None else np.diff(offsets)
    if child is not None:
        return NestedColumn(items, ranges, validity, None, lengths, (_take_apart(child, below, name),))
    text = np.empty(0, np.uint8) if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)
    leaf = NestedColumn(total, below, None, text, None, ())
    return NestedColumn(items, ranges, validity, None, lengths, (leaf,))


def _offsets_of(buffer: pa.Buffer | None, width: int, array: pa.Array, name: str) -> NDArray[Any]:
    count = len(array) + 1
    if buffer is None or (not len(array) and not buffer.size):
        return np.zeros(1, f"i{width}")
    if buffer.size < width * (array.offset + count):
        raise _make_corrupt_error(name, f"its {buffer.size} bytes of offsets are too few")
    return np.frombuffer(buffer, f"i{width}", count, width * array.offset)


def _compose(ranges: _Ranges | None, offsets: NDArray[Any], items: int, name: str) -> _Ranges:
    """The ranges of rows among items, of which ``offsets`` gives those of each item that ``ranges`` counts."""
    if ranges is None:
        return _Ranges(offsets, items)
    # the offsets of the rows are checked where they move, but here they are indices already
    rows = ranges.offsets
    outside = len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(offsets))
    if outside or offsets[0] < 0 or offsets[-1] > items or (offsets[1:] < offsets[:-1]).any():
        raise _make_corrupt_error(name, _WRONG_OFFSETS)
    return _Ranges(offsets[ranges.offsets].astype(np.int64, copy=False), items)


def _leaf_bytes(array: pa.Array, width: int, name: str) -> NDArray[np.uint8]:
    data, items = array.buffers()[1], len(array)
    if data is None:
        return np.zeros(width * items, np.uint8)
    if pt.is_boolean(array.type):
        values = unpack(data, array.offset, items)
    else:
        values = np.frombuffer(data, np.uint8)[width * array.offset : width * (array.offset + items)]
    if len(values) < width * items:
        raise _make_corrupt_error(name, f"its {data.size} bytes are too few for {items} values")
    return values


def _make_corrupt_error(name: str, what: str) -> SourceError:
    return SourceError(
        f"the values of column {name!r} are corrupt: {what}. If it was read or mapped from a file, write the file "
        "again; if map_batches made it, call pyarrow's validate(full=True) there for details"
    )


def move_nested(
    columns: Sequence[NestedColumn],
    kind: pa.DataType,
    targets: Sequence[Targets],
    rows: slice,
    pool: BufferPool,
    name: str,
) -> pa.Array | None:
    """Move rows of several parts into one array: row i of a part goes to its target, if that is in the range ``rows``.

    Every row in the range is the target of exactly one row. None if there are more values than the type's offsets
    can count; a `SourceError` if offsets decrease, or are outside the values.
    """
    for column, to in zip(columns, targets, strict=True):
        if not 0 <= to.first <= to.first + to.rows <= column.items:
            raise ValueError(f"rows {to.first} to {to.first + to.rows} of {column.items} cannot have targets")
    moving = _Moving(targets, rows, pool, name)
    try:
        return moving.move(columns, kind, None)
    except _TooManyValuesError:
        return None


class _TooManyValuesError(Exception):
    """Offsets of 4 bytes cannot count the values."""


class _Moved(NamedTuple):
    """The ranges of the rows that have moved."""

    offsets: NDArray[Any]  # (rows + 1,)
    items: int
    length: int  # of every range; -1: they differ


class _Moving:
    """Moves columns whose rows go to the same targets."""

    def __init__(self, targets: Sequence[Targets], rows: slice, pool: BufferPool, name: str) -> None:
        self._firsts, self._counts, self._addresses = np.array(targets, np.int64).reshape(-1, 3).T.copy()
        self._rows, self._pool, self._name = rows, pool, name
        self._count = rows.stop - rows.start
        # where rows go, for the kernels
        self._where = self._addresses, self._counts, rows.start, self._count

    def move(self, columns: Sequence[NestedColumn], kind: pa.DataType, moved: _Moved | None) -> pa.Array:
        """Move a column, or what is nested in it: then ``moved`` has the ranges of rows among its items."""
        if isinstance(kind, pa.BaseExtensionType):
            return kind.wrap_array(self.move(columns, kind.storage_type, moved))
        items = self._count if moved is None else moved.items
        validity = self._move_validity(columns, moved)
        width = fixed_width_bytes(kind)
        if width:
            moving = self._move_values([_leaf_of(column) for column in columns], columns, width, moved)
            values = rows_view(moving, width)
            if validity is not None and validity.nulls:
                # what lies below nulls is arbitrary
                values[np.unpackbits(validity.bits, count=items, bitorder="little") == 0] = 0
            return wrap_values(values, kind, validity)
        mask, nulls = wrap_validity(validity)
        if pt.is_struct(kind):
            fields = [
                self.move([column.children[at] for column in columns], field.type, moved)
                for at, field in enumerate(kind.fields)
            ]
            return pa.Array.from_buffers(kind, items, [mask], nulls, children=fields)
        below = [column.children[0] for column in columns]
        if pt.is_fixed_size_list(kind):
            inner = self._move_ranges(below, 8)
            child = self.move(below, kind.value_type, inner)
            return pa.Array.from_buffers(kind, items, [mask], nulls, children=[child])
        offset_bytes = offset_width(kind) or (8 if pt.is_large_list(kind) else 4)
        inner = self._move_ranges(below, 8 if moved is not None else offset_bytes)
        offsets = inner.offsets if moved is None else self._move_offsets(columns, moved, inner, offset_bytes)
        if offset_width(kind):
            text = self._move_values([_leaf_of(one) for one in below], below, 1, inner)
            return pa.Array.from_buffers(
                kind, items, [mask, pa.py_buffer(offsets), pa.py_buffer(text)], nulls
            )
        child = self.move(below, kind.value_type, inner)
        return pa.Array.from_buffers(kind, items, [mask, pa.py_buffer(offsets)], nulls, children=[child])

    def _move_ranges(self, columns: Sequence[NestedColumn], width: int) -> _Moved:
        """The ranges of the moved rows among the items of ``columns``, as offsets of ``width`` bytes."""
        offsets = self._pool.take(width * (self._count + 1))
        held, addresses = self._range_addresses(columns, width)
        sizes = np.array([each.items for each in held], np.int64)
        length = native.LIBRARY.windrow_common_length(width, len(columns), addresses, sizes, self._counts)
        if length >= 0:
            # codes, hashes and the like: where rows go is where their values go
            total = length * self._count
        else:
            total = native.LIBRARY.windrow_checked_offsets(
                width, len(columns), addresses, sizes, *self._where, offsets
            )
        if total < 0:
            raise _make_corrupt_error(self._name, _WRONG_OFFSETS)
        if not fits_offsets(total, width):
            raise _TooManyValuesError
        found = offsets.view(f"i{width}")
        if length >= 0:
            np.multiply(np.arange(self._count + 1, dtype=found.dtype), length, out=found)
        return _Moved(found, total, length)

    def _range_addresses(
        self, columns: Sequence[NestedColumn], width: int
    ) -> tuple[list[_Ranges], NDArray[np.int64]]:
        """The ranges of each part, with offsets of ``width`` bytes, and the addresses of those of its first row."""
        held = [_widen(column.ranges, width) for column in columns if column.ranges is not None]
        addresses = np.array([address_of(each.offsets) for each in held], np.int64)
        return held, addresses + self._firsts * width

    def _move_values(
        self,
        values: Sequence[NDArray[np.uint8]],
        columns: Sequence[NestedColumn],
        width: int,
        moved: _Moved | None,
    ) -> NDArray[np.uint8]:
        """Move ``width`` bytes of each item."""
        out = self._pool.take(width * (self._count if moved is None else moved.items))
        sources = np.array([address_of(each) for each in values], np.int64)
        if moved is None:
            rows = sources + self._firsts * width
            native.LIBRARY.windrow_scatter_rows(width, len(rows), rows, *self._where, out)
            return out
        offset_bytes = moved.offsets.itemsize
        held, addresses = self._range_addresses(columns, offset_bytes)
        if moved.length >= 0:
            starts = [int(each.offsets[first]) for each, first in zip(held, self._firsts, strict=True)]
            rows = sources + np.array(starts, np.int64) * width
            native.LIBRARY.windrow_scatter_rows(moved.length * width, len(rows), rows, *self._where, out)
            return out
        native.LIBRARY.windrow_move_ranges(
            offset_bytes, len(held), addresses, sources, width, *self._where, moved.offsets, out
        )
        return out

    def _move_offsets(
        self, columns: Sequence[NestedColumn], moved: _Moved, inner: _Moved, width: int
    ) -> NDArray[Any]:
        """The offsets of lists or texts that are nested themselves."""
        lengths = [column.lengths for column in columns]
        held = [
            np.ascontiguousarray(each, f"i{width}").view(np.uint8) for each in lengths if each is not None
        ]
        found = self._move_values(held, columns, width, moved).view(f"i{width}")
        if not fits_offsets(inner.items, width):
            raise _TooManyValuesError
        offsets = self._pool.take(width * (len(found) + 1)).view(f"i{width}")
        offsets[0] = 0
        np.cumsum(found, out=offsets[1:])
        return offsets

    def _move_validity(self, columns: Sequence[NestedColumn], moved: _Moved | None) -> Validity | None:
        if all(column.validity is None for column in columns):
            return None
        if moved is None:
            bits = [
                (0, 0) if each is None else (each[0].address, each[1])
                for each in (c.validity for c in columns)
            ]
            addresses, shifts = np.array(bits, np.int64).T.copy()
            out = self._pool.take(-(-self._count // 8))
            where = (self._firsts + shifts, self._addresses, self._counts, self._rows)
            return Validity(out, native.move_validity(addresses, *where, out))
        flags = [_flags_of(column) for column in columns]
        found = self._move_values(flags, columns, 1, moved)
        return Validity(pack(found), len(found) - int(np.count_nonzero(found)))


def _leaf_of(column: NestedColumn) -> NDArray[np.uint8]:
    assert column.values is not None
    return column.values


def _widen(ranges: _Ranges, width: int) -> _Ranges:
    return (
        ranges
        if ranges.offsets.itemsize == width
        else ranges._replace(offsets=ranges.offsets.astype(f"i{width}"))
    )


def _flags_of(column: NestedColumn) -> NDArray[np.uint8]:
    """(items,) 1 for valid and 0 for null."""
    items = 0 if column.ranges is None else column.ranges.items
    if column.validity is None:
        return np.ones(items, np.uint8)
    bitmap, offset = column.validity
    return unpack(bitmap, offset, items)
