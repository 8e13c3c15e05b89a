"""Cuts the lists of rows that are longer than a token budget allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.source import BlockPart
from windrow.pipeline.delivery.to_numpy import list_offsets
from windrow.pipeline.tasks.failed_rows import checking_rows

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ListLimit:
    """The most ``items`` that a list of ``column`` keeps, and with it the row's other lists of as many items.

    >>> rows = pa.table({"tokens": [[1, 2, 3], [4]], "mask": [[1, 1, 0], [1]], "places": [[7], [8]]})
    >>> ListLimit("tokens", 2).cut(rows, "a.parquet").to_pydict()
    {'tokens': [[1, 2], [4]], 'mask': [[1, 1], [1]], 'places': [[7], [8]]}
    """

    column: str
    items: int

    def cut(self, part: BlockPart, origin: str) -> BlockPart:
        """Rows whose lists are cut; the same ones if none is too long. Columns without such lists are not copied.

        Raises
        ------
        TransformError
            If the column is not one of lists of any length; names it and ``origin``, the block.
        """
        with checking_rows(f"{origin}: "):
            check_lists(part.schema, self.column)
        lengths = _count_items(part.select([part.schema.get_field_index(self.column)]).column(0))
        (long,) = np.nonzero(lengths > self.items)
        if not len(long):
            return part
        table = part.select(list(range(len(part.schema))))
        for number, field in enumerate(table.schema):
            if _is_list(field.type):
                column = table.column(number)
                same = long[_count_items(column)[long] == lengths[long]]
                if len(same):
                    table = table.set_column(number, field, _cut_rows(column, same, self.items))
        return table


def check_lists(schema: pa.Schema, column: str) -> None:
    """Raise PlanError if rows with this schema cannot be cut by the lists of a column."""
    kind = schema.field(column).type
    if _is_list(kind):
        return
    reason = "it does not tell which lists of the row have that length"
    if pa.types.is_fixed_size_list(kind):
        reason = "all its lists have one length, and would all be cut"
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        reason = "cut by bytes, it could end within a character or a value"
    raise PlanError(
        f'long_rows="truncate" cannot cut rows by column {column!r} of type {kind}: {reason}. Balance by a '
        'column of lists, shorten rows with map_batches before the shuffle, or use long_rows="drop"'
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _count_items(column: pa.ChunkedArray) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *(np.diff(list_offsets(chunk)) for chunk in column.chunks)])


def _cut_rows(column: pa.ChunkedArray, rows: Ints, items: int) -> pa.ChunkedArray:
    """Cut the lists of some rows; chunks without such rows stay as they are."""
    chunks, first = [], 0
    for chunk in column.chunks:
        start, stop = np.searchsorted(rows, [first, first + len(chunk)])
        chunks.append(_cut_chunk(chunk, rows[start:stop] - first, items) if start < stop else chunk)
        first += len(chunk)
    return pa.chunked_array(chunks, column.type)


def _cut_chunk(lists: Any, rows: Ints, items: int) -> Any:
    offsets = list_offsets(lists)
    lengths = np.diff(offsets)
    lengths[rows] = items
    # the values between what is left out
    kept = np.concatenate([offsets[:1], np.stack([offsets[rows] + items, offsets[rows + 1]], 1).ravel()])
    borders = np.append(kept, offsets[-1]).reshape(-1, 2).tolist()
    values = pa.concat_arrays([lists.values.slice(start, stop - start) for start, stop in borders])
    dtype = np.int64 if pa.types.is_large_list(lists.type) else np.int32
    return type(lists).from_arrays(
        pa.array(np.append(0, np.cumsum(lengths)).astype(dtype)),
        values,
        type=lists.type,
        mask=lists.is_null() if lists.null_count else None,
    )
