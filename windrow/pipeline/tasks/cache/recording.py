"""Records the decoded columns of a block's parts while they are used, so that the block can be cached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from windrow.core.source import BlockPart, column_bounds
from windrow.shuffle.kernels.arrow_columns import join
from windrow.shuffle.kernels.bit_packing import find_ranges

__all__ = ["record_parts"]


class _RecordedPart:
    """A part that keeps its decoded columns, each as one contiguous array."""

    def __init__(self, part: BlockPart) -> None:
        self._part = part
        self._columns: dict[int, pa.Array] = {}

    @property
    def num_rows(self) -> int:
        return self._part.num_rows

    @property
    def schema(self) -> pa.Schema:
        return self._part.schema

    def select(self, columns: list[int]) -> pa.Table:
        for number in columns:
            if number not in self._columns:
                self._columns[number] = join(self._part.select([number]))
        schema = pa.schema([self.schema.field(number) for number in columns])
        return pa.Table.from_arrays([self._columns[number] for number in columns], schema=schema)

    def bounds(self, column: int) -> tuple[int, int] | None:
        bounds = column_bounds(self._part, column)
        return find_ranges([self.select([column]).column(0)]) if bounds is None else bounds

    def table(self) -> pa.Table:
        return self.select(list(range(len(self.schema))))


def record_parts(parts: Iterable[BlockPart], tables: list[pa.Table]) -> Iterator[BlockPart]:
    """Yield the parts of a block, and append each one's decoded table to ``tables``.

    The table of a part is appended when the next part is requested; the last one at the end.
    """
    for part in parts:
        if isinstance(part, pa.Table):
            whole = part.combine_chunks()
            yield whole
            tables.append(whole)
            continue
        recorded = _RecordedPart(part)
        yield recorded
        if recorded.num_rows:
            tables.append(recorded.table())
