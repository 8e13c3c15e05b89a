"""Moves columns without a fixed width by Arrow: those that `nested_columns` does not support, or without C."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import convert_children, rebuild_type, validity_bitmap
from windrow.core.buffer_pool import BufferPool
from windrow.core.chosen_rows import copy_slice, has_fixed_lists_in_fixed_lists
from windrow.core.errors import PlanError
from windrow.shuffle.kernels.fixed_width import list_rows_of, row_bytes, rows_view, wrap_list_rows


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


def join_each(table: pa.Table) -> list[pa.Array]:
    """Concatenate the chunks of each column, without a copy where there is one."""
    return [
        column.chunk(0) if column.num_chunks == 1 else join(table.select([at]))
        for at, column in enumerate(table.columns)
    ]


def unify_dictionaries(table: pa.Table) -> pa.Table:
    """Give all chunks of a column one dictionary; encode again those that hold nulls, which Arrow does not unify."""
    for place, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) and any(
            chunk.dictionary.null_count for chunk in column.chunks
        ):
            encoded = column.cast(column.type.value_type).dictionary_encode().cast(column.type)
            table = table.set_column(place, table.field(place), encoded)
    return table.unify_dictionaries()


def join_table(table: pa.Table) -> pa.Table:
    """Concatenate the chunks of every column; unifies dictionaries."""
    try:
        return unify_dictionaries(table).combine_chunks()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        # which column it is, in an error that says what to do
        for name in table.column_names:
            join(table.select([name]))
        raise


def _make_unmovable_error(name: str, kind: Any, error: Exception) -> PlanError:
    if pa.types.is_dictionary(kind) and "larger index type" in str(error):
        return PlanError(
            f"column {name!r} of type {kind}: rows that are delivered together have more different values than "
            f"{kind.index_type} indices can number; give it wider ones, for example "
            "pa.dictionary(pa.int32(), ...) in schema= where the files are read, or a cast in map_batches"
        )
    return PlanError(
        f"rows of column {name!r} of type {kind} cannot be moved: {error}; "
        "leave the column out (columns=) or cast it in map_batches"
    )


def _index(rows: NDArray[np.int64]) -> pa.Array:
    # pa.array() would import pandas if installed: half a second per process
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)], null_count=0)


def _take(array: pa.Array, index: pa.Array) -> pa.Array:
    substitute = _without_views(array.type)
    if has_fixed_lists_in_fixed_lists(array.type):
        # a copy without offsets: Arrow 26 ignores those of the inner lists, and takes other values
        array = copy_slice(array)
    if substitute is not None:
        # Arrow has no `take` for string views, and views would keep the whole source buffer alive
        return _restore_views(_drop_views(array, substitute).take(index), array.type)
    taken = array.take(index)
    return _prune(taken) if pa.types.is_dictionary(array.type) else taken


def _drop_views(array: Any, kind: Any) -> Any:
    """Convert an array to a type without views; Arrow 26 makes wrong offsets of a slice of views of lists."""
    if array.type.equals(kind):
        # Arrow 26 cannot cast fixed-size lists of non-nullable ones to their own type
        return array
    if not kind.num_fields:
        return array.cast(kind)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        dtype = np.int64 if pa.types.is_large_list(kind) else np.int32
        lengths = np.asarray(array.value_lengths().fill_null(0), dtype)
        offsets = pa.py_buffer(np.cumsum(np.append(0, lengths), dtype=dtype))
        children = [_drop_views(array.flatten(), kind.value_type)]
        return pa.Array.from_buffers(kind, len(array), [validity_bitmap(array), offsets], children=children)
    return convert_children(array, kind, _drop_views)


def _restore_views(array: Any, kind: Any) -> Any:
    """Convert an array to a type with views; Arrow does not cast to them within lists."""
    if array.type.equals(kind):
        return array
    if not kind.num_fields:
        return array.cast(kind)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        offsets = np.asarray(array.offsets)
        buffers = [validity_bitmap(array), pa.py_buffer(offsets[:-1]), pa.py_buffer(np.diff(offsets))]
        children = [_restore_views(array.values, kind.value_type)]
        return pa.Array.from_buffers(kind, len(array), buffers, children=children)
    return convert_children(array, kind, _restore_views)


def _without_views(kind: pa.DataType) -> pa.DataType | None:
    """The type with string views replaced at every level, and lists in place of views of such; None if it has none."""
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
    rebuilt = [f if t is None else f.with_type(t) for f, t in zip(fields, inner, strict=True)]
    if pa.types.is_list_view(kind):
        return pa.list_(rebuilt[0])
    return pa.large_list(rebuilt[0]) if pa.types.is_large_list_view(kind) else rebuild_type(kind, rebuilt)


def _prune(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Drop unused dictionary values if the dictionary is longer than the column."""
    if array.type.ordered or len(array.dictionary) <= len(array):
        return array
    import pyarrow.compute as pc

    used = pc.unique(array.indices).drop_null()
    indices = pc.index_in(array.indices, value_set=used).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.take(used))
