"""Rows of one file that a block or a part of one consists of: whole row groups, or some rows of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from windrow.io.parquet.row_groups import count_rows, open_parquet, read_groups
from windrow.io.parquet.row_ranges import RowRange
from windrow.io.parquet.stored_chunks import Chunk, Fields, NestedLeaf
from windrow.io.storage.verified_files import BlockFile

__all__ = ["StoredRows"]


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Row groups of one file in a part, or some rows of one."""

    block: BlockFile
    numbers: tuple[int, ...]
    start: int = 0  # offset of the file in what the part is decoded from
    rows: RowRange | None = None

    @cached_property
    def num_rows(self) -> int:
        if self.rows is not None:
            return self.rows.num_rows
        return count_rows(self.block.footer.metadata, self.numbers)

    @cached_property
    def filled(self) -> list[int]:
        """The row groups with rows: the statistics and pages of others mean nothing."""
        row_group = self.block.footer.metadata.row_group
        return [number for number in self.numbers if row_group(number).num_rows]

    def read(self, fields: Sequence[pa.Field[Any]], **options: Any) -> pa.Table:
        """Read columns as Arrow does; ``options`` are of ``pyarrow.parquet.ParquetFile``."""
        if self.rows is not None:
            return self.rows.read(fields, **options)
        # a path can also match a column whose name has dots, so this can read more columns, never fewer
        paths = self.block.footer.leaf_paths(fields)
        stored = open_parquet(self.block, **options) if options else self._parquet
        return read_groups(stored, self.numbers, paths)

    @cached_property
    def _parquet(self) -> Any:
        return open_parquet(self.block)

    def chunks(self, fields: Fields) -> list[list[Chunk | None]]:
        """By row group with rows, the chunk of each field."""
        if self.rows is not None:
            return [self.rows.chunks(fields)]
        return [self.block.footer.chunks(number, fields) for number in self.filled]

    def nested(self, name: str, kind: pa.DataType) -> list[tuple[NestedLeaf, ...] | None]:
        """By row group, the leaves of a nested column."""
        if self.rows is not None:
            return [self.rows.nested(name, kind)]
        return [self.block.footer.nested(number, name, kind) for number in self.numbers]

    def locate(self, row: int) -> str:
        """Name the row group of a row."""
        return self.block.locate(self.numbers)(0 if self.rows is not None else row)
