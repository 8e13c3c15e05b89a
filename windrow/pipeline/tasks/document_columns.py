"""The columns of documents: their types, the lengths and values of lists, and numbers repeated for tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import TransformError
from windrow.core.source import BlockPart, can_scatter
from windrow.pipeline.delivery.to_numpy import fixed_list_values, is_list, list_offsets
from windrow.shuffle.kernels.fixed_width import values_of, wrap_values


def decode_documents(parts: Iterable[BlockPart], columns: Sequence[str], pool: BufferPool) -> pa.Table | None:
    """Some columns of a block, whose lists are decoded straight from its file where that is possible; None: no rows."""
    tables = []
    for part in parts:
        arrays = []
        for name in columns:
            number = part.schema.get_field_index(name)
            is_decoded = can_scatter(part) and is_list(part.schema.field(number).type)
            array = part.decode_nested(number, pool) if is_decoded else None  # type: ignore[attr-defined]
            arrays.append(part.select([number]).column(0) if array is None else array)
        tables.append(pa.table(arrays, names=list(columns)))
    return pa.concat_tables(tables) if tables else None


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is one of tokens."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of text."""
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in checks)


def join_chunks(name: str, column: pa.ChunkedArray, where: str) -> pa.Array:
    """A column's chunks as one array; ``where`` begins the message of the error if its lists do not fit into one."""
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return pa.concat_arrays(column.chunks)
    except pa.ArrowInvalid as error:
        raise TransformError(
            f"{where}the lists of column {name!r} do not fit into one Arrow array ({error}): use large_list, or give "
            "the read_* call a smaller target_block_bytes"
        ) from error


def common_lengths(lists: Mapping[str, pa.Array], where: str) -> NDArray[np.int64]:
    """(rows,) the length of each row's lists, which all columns must share."""
    (first, lengths), *others = [(name, _lengths(name, array, where)) for name, array in lists.items()]
    for name, other in others:
        (differing,) = np.nonzero(lengths != other)
        if len(differing):
            row = int(differing[0])
            raise TransformError(
                f"{where}a row has {lengths[row]:,} values in {first!r} and {other[row]:,} in {name!r}: the lists of a "
                "row must be of one length"
            )
    return lengths


def _lengths(name: str, array: pa.Array, where: str) -> NDArray[np.int64]:
    if array.null_count:
        raise TransformError(f"{where}column {name!r} has nulls: fill them, or filter such rows out")
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    return np.diff(list_offsets(array))


def repeat_values(array: pa.Array, counts: NDArray[np.int64]) -> pa.Array:
    """Each value so many times."""
    if array.null_count:
        return array.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return wrap_values(np.repeat(values_of(array), counts, axis=0), array.type, None)


def tokens_of(name: str, array: pa.Array, where: str) -> pa.Array:
    """The values of all lists of a column."""
    if pa.types.is_fixed_size_list(array.type):
        values = fixed_list_values(array)
    else:
        offsets = list_offsets(array)
        values = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if values.null_count:
        raise TransformError(
            f"{where}the lists of column {name!r} hold nulls: replace them with map_batches before"
        )
    return values
