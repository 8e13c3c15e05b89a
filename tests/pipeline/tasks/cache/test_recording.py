"""Decoded columns are recorded while the parts of a block are used."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from windrow.pipeline.tasks.cache.recording import record_parts


@dataclass
class LazyPart:
    """Columns that are decoded on selection, in several chunks."""

    table: pa.Table
    asked: list[int] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def select(self, columns: list[int]) -> pa.Table:
        self.asked.extend(columns)
        return self.table.select(columns)


def make(start: int) -> pa.Table:
    half = pa.table({"x": [start, start + 1], "s": ["a", None]})
    return pa.concat_tables([half, half])


def test_columns_are_decoded_once_and_kept_in_one_piece() -> None:
    parts = [LazyPart(make(0)), LazyPart(make(10))]
    tables: list[pa.Table] = []
    for part in record_parts(parts, tables):
        assert part.select([1]).column(0).num_chunks == 1
    assert [sorted(part.asked) for part in parts] == [[0, 1], [0, 1]]
    assert [table.to_pydict() for table in tables] == [make(0).to_pydict(), make(10).to_pydict()]
    assert all(column.num_chunks == 1 for table in tables for column in table.columns)


def test_a_part_without_rows_leaves_nothing_unless_it_is_a_table() -> None:
    tables: list[pa.Table] = []
    empty = make(0).slice(0, 0)
    assert len(list(record_parts([LazyPart(empty), empty], tables))) == 2
    assert [table.schema for table in tables] == [empty.schema]
