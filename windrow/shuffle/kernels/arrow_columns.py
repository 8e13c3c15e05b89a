"""Moves columns without a fixed width: text with the C kernels, lists, dictionaries and structs with Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError, SourceError
from windrow.core.native_libraries import address_of
from windrow.core.text_types import fits_offsets, offset_width
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.fixed_width import (
    list_rows_of,
    pack,
    row_bytes,
    rows_view,
    validity_of,
    wrap_list_rows,
)

__all__ = ["can_move_text", "join", "move_column", "move_text"]


def move_column(array: pa.Array, rows: NDArray[np.int64], name: str, pool: BufferPool) -> pa.Array:
    """Take rows of any column by row number; fixed-size lists without nulls are copied to pool memory."""
    values = list_rows_of(array)
    if values is not None and len(rows):
        memory = pool.take(row_bytes(values) * len(rows))
        np.take(values, rows, axis=0, out=rows_view(memory, row_bytes(values)), mode="clip")
        return wrap_list_rows(memory, array.type, len(rows))
    try:
        return _take(array, _index(rows))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise _make_unmovable_error(name, array.type, error) from error


def join(column: pa.Table) -> pa.Array:
    """Concatenate the chunks of a table's only column; unifies dictionaries."""
    try:
        # on the table: `ChunkedArray.combine_chunks` would make a Python object per chunk
        chunks = column.combine_chunks().column(0)
        return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise _make_unmovable_error(column.field(0).name, column.field(0).type, error) from error


def _make_unmovable_error(name: str, kind: pa.DataType, error: Exception) -> PlanError:
    return PlanError(
        f"column {name!r} of type {kind} cannot be shuffled: {error}; "
        "leave the column out (columns=) or cast it before the shuffle (map_batches)"
    )


def _index(rows: NDArray[np.int64]) -> pa.Array:
    # pa.array() would import pandas if installed: half a second per process
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)], null_count=0)


def _take(array: pa.Array, index: pa.Array) -> pa.Array:
    substitute = _without_views(array.type)
    if substitute is not None:
        # Arrow has no `take` for string views, and views would keep the whole source buffer alive
        return array.cast(substitute).take(index).cast(array.type)
    taken = array.take(index)
    return _prune(taken) if pa.types.is_dictionary(array.type) else taken


def _without_views(kind: pa.DataType) -> pa.DataType | None:
    """The type with string views replaced at every level; None if it has none."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind) or not kind.num_fields:
        return None
    fields = [kind.field(i) for i in range(kind.num_fields)]
    inner = [_without_views(field.type) for field in fields]
    if all(each is None for each in inner):
        return None
    return _rebuild(kind, [f if t is None else f.with_type(t) for f, t in zip(fields, inner, strict=True)])


def _rebuild(kind: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        key, item = fields[0].type.fields
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pa.types.is_large_list(kind) else pa.list_(fields[0])


def _prune(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Drop unused dictionary values if the dictionary is longer than the column."""
    if array.type.ordered or len(array.dictionary) <= len(array):
        return array
    import pyarrow.compute as pc

    used = pc.unique(array.indices).drop_null()
    indices = pc.index_in(array.indices, value_set=used).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.take(used))


def can_move_text(kind: pa.DataType) -> bool:
    """Whether `move_text` supports a type; needs the C kernels."""
    return native.LIBRARY is not None and offset_width(kind) > 0


def move_text(
    arrays: Sequence[pa.Array],
    targets: Sequence[NDArray[np.uint32]],
    rows: slice,
    pool: BufferPool,
    name: str,
) -> pa.Array | None:
    """Scatter several arrays into one: row i of each goes to row ``targets[i]``, if that is in the range ``rows``.

    Every row in the range is the target of exactly one row. None if the text is too long for the type's
    offsets; a `SourceError` if offsets decrease, or are outside the text.
    """
    kind, count = arrays[0].type, rows.stop - rows.start
    width = offset_width(kind)
    if any(
        len(array) != len(array_targets) or array_targets.dtype != np.uint32
        for array, array_targets in zip(arrays, targets, strict=True)
    ):
        raise ValueError("each row needs a target, of 4 bytes")
    found = np.array([_addresses(array, width, name) for array in arrays], np.int64)
    offsets, texts, sizes = np.ascontiguousarray(found.T)
    counts = np.array([len(array) for array in arrays], np.int64)
    target_addresses = np.array([address_of(of_array) for of_array in targets], np.int64)
    out_offsets = pool.take(width * (count + 1))
    where = (target_addresses, counts, rows.start, count, out_offsets)
    total = native.LIBRARY.windrow_checked_offsets(width, len(arrays), offsets, sizes, *where)
    if total < 0:
        raise _make_corrupt_text_error(name, "offsets decrease, or are outside the text")
    if not fits_offsets(total, width):
        return None
    out = pool.take(total)
    native.LIBRARY.windrow_text(width, len(arrays), offsets, texts, *where, out)
    valid = _move_validity(arrays, targets, rows)
    nulls = 0 if valid is None else count - int(np.count_nonzero(valid))
    mask = None if valid is None else pa.py_buffer(pack(valid))
    return pa.Array.from_buffers(
        kind, count, [mask, pa.py_buffer(out_offsets), pa.py_buffer(out)], null_count=nulls
    )


def _addresses(array: pa.Array, width: int, name: str) -> tuple[int, int, int]:
    """The address of an array's first offset, the address of its text, and the bytes of the text."""
    _, offsets, text = array.buffers()
    if offsets is None or not len(array):
        return 0, 0, 0
    if offsets.size < width * (array.offset + len(array) + 1):
        raise _make_corrupt_text_error(name, f"its {offsets.size} bytes of offsets are too few")
    start = offsets.address + width * array.offset
    return (start, 0, 0) if text is None else (start, text.address, text.size)


def _make_corrupt_text_error(name: str, what: str) -> SourceError:
    return SourceError(
        f"the text of column {name!r} is corrupt: {what}. If it was read or mapped from a file, write the file "
        "again; if map_batches made it, call pyarrow's validate(full=True) there for details"
    )


def _move_validity(
    arrays: Sequence[pa.Array], targets: Sequence[NDArray[np.uint32]], rows: slice
) -> NDArray[np.uint8] | None:
    """(rows,) 1 for valid and 0 for null, scattered like the values; None if there are no nulls."""
    masks = [validity_of(array) for array in arrays]
    if all(mask is None for mask in masks):
        return None
    valid = np.ones(rows.stop - rows.start, np.uint8)
    for mask, row_targets in zip(masks, targets, strict=True):
        if mask is not None:
            here = (row_targets >= rows.start) & (row_targets < rows.stop)
            valid[row_targets[here] - np.uint32(rows.start)] = mask[here]
    return valid
