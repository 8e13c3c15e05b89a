"""The rows of files that a part of a block consists of: joined row groups, some rows of one, or many small files.

Opening a small file, parsing its footer and calling the decoder cost more than its bytes. So a small file is read
with one read, its footer is parsed once in a process (`windrow.io.parquet.verified_files`), and one call decodes all
files of a part. Larger files stay where they are; one call decodes row groups of several, too
(`windrow.io.parquet.decoder_library.JoinedFiles`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.io.formats.row_group_format import PART_BYTES
from windrow.io.formats.whole_file_format import read_contents
from windrow.io.parquet.chunks import Chunk, chunk_table, move_chunks
from windrow.io.parquet.decoder_library import ChunkFile, JoinedFiles
from windrow.io.parquet.row_ranges import RowRange
from windrow.io.parquet.stored_chunks import Fields, NestedLeaf
from windrow.io.parquet.verified_files import BlockFile, open_block, open_bytes, open_parquet
from windrow.io.storage.file_versions import RowGroups
from windrow.io.storage.filesystems import Files

# that are open at a time in a task
_PART_FILES = 16


def _count_rows(metadata: Any, numbers: Iterable[int]) -> int:
    """The rows of some row groups, as the footer states them."""
    return sum(metadata.row_group(number).num_rows for number in numbers)


def _all_of(leaves: Iterable[NestedLeaf | None]) -> tuple[NestedLeaf, ...] | None:
    """The leaves, None if one is."""
    found = tuple(leaves)
    known = tuple(leaf for leaf in found if leaf is not None)
    return known if len(known) == len(found) else None


def _read_groups(stored: Any, numbers: Sequence[int], names: list[str]) -> pa.Table:
    """Read columns of row groups, and check the row count: Arrow can silently read fewer rows from corrupt pages."""
    table = stored.read_row_groups(list(numbers), columns=names, use_threads=False)
    expected = _count_rows(stored.metadata, numbers)
    if table.num_rows != expected or any(len(column) != expected for column in table.columns):
        raise pa.ArrowInvalid(f"pages hold {table.num_rows} rows where the footer states {expected}")
    return table


def read_small_files(
    files: Files, part: Sequence[RowGroups]
) -> tuple[pa.Buffer, list[tuple[BlockFile, int]]]:
    """Read whole files: their bytes one after another, and each as a block's file with its offset in them."""
    contents = read_contents(files, part)
    data = pa.py_buffer(contents.data)
    starts = contents.ends[:-1].tolist()
    return data, [
        (open_bytes(files, groups, files.name(groups.path), data.slice(start, groups.size_bytes)), start)
        for groups, start in zip(part, starts, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Row groups of one file in a part, or some rows of one."""

    block: BlockFile
    numbers: tuple[int, ...]
    # where the file begins in what the part is decoded from; None: that is the file
    start: int | None = None
    rows: RowRange | None = None

    @cached_property
    def num_rows(self) -> int:
        if self.rows is not None:
            return self.rows.num_rows
        return _count_rows(self.block.footer.metadata, self.numbers)

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
        return _read_groups(stored, self.numbers, paths)

    @cached_property
    def _parquet(self) -> Any:
        return open_parquet(self.block)

    def chunks(self, fields: Fields) -> list[list[Chunk | None]]:
        """By row group with rows, the chunk of each field."""
        if self.rows is not None:
            return [self.rows.chunks(fields)]
        found = [self.block.footer.stored_columns(number, fields).chunks for number in self.filled]
        if self.start is None:
            return found
        place = self.start, self.block.groups.size_bytes
        return [[None if chunk is None else chunk.moved(*place) for chunk in chunks] for chunks in found]

    def chunk_tables(self, fields: Fields) -> list[NDArray[np.int64]]:
        """By row group with rows, the `chunk_table` of the fields."""
        if self.rows is not None:
            return [chunk_table(self.rows.chunks(fields))]
        tables = [self.block.footer.stored_columns(number, fields).table for number in self.filled]
        if self.start is None:
            return tables
        return [move_chunks(table, self.start, self.block.groups.size_bytes) for table in tables]

    def bounds(self, fields: Fields) -> list[NDArray[np.int64]]:
        """By row group with rows, minimum and maximum of the fields as a `bounds_table`, from the statistics."""
        return [self.block.footer.stored_columns(number, fields).bounds for number in self.filled]

    def nested(self, name: str, kind: pa.DataType) -> list[tuple[NestedLeaf, ...] | None]:
        """By row group, the leaves of a nested column."""
        if self.rows is not None:
            return [self.rows.nested(name, kind)]
        found = [self.block.footer.nested(number, name, kind) for number in self.numbers]
        if self.start is None:
            return found
        place = self.start, self.block.groups.size_bytes
        return [
            None if leaves is None else _all_of(leaf.moved(*place) for leaf in leaves) for leaves in found
        ]

    def locate(self, row: int) -> str:
        """Name the row group of a row."""
        return self.block.locate(self.numbers, 0 if self.rows is not None else row)


# what the rows of a part are decoded from, and they
JoinedRows = tuple[ChunkFile, tuple[StoredRows, ...]]


class LocalFiles:
    """The local files whose row groups are read into common parts: open from their first row to their last one."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # each file that has rows of the next part, and these; the last one can have rows behind that part
        self._blocks: list[BlockFile] = []
        self._numbers: list[list[int]] = []
        self._part_bytes = 0

    def __enter__(self) -> LocalFiles:
        return self

    def __exit__(self, *error: object) -> None:
        for block in self._blocks:
            block.close()

    def add(self, groups: RowGroups, origin: str) -> Iterator[JoinedRows]:
        """Add the row groups of a file; yields the parts that are complete with them."""
        if len(self._blocks) >= _PART_FILES:
            yield from self.finish()
        block = open_block(self._files, groups, origin)
        self._blocks.append(block)
        self._numbers.append([])
        with block.mapped_errors():
            sizes = block.group_bytes
        for number, size_bytes in enumerate(sizes, groups.start):
            self._numbers[-1].append(number)
            self._part_bytes += size_bytes
            if self._part_bytes >= PART_BYTES:
                yield self._take_part()
                self._close(slice(0, -1))
        if not any(self._numbers):
            self._close(slice(None))

    def finish(self) -> Iterator[JoinedRows]:
        """Yield the rest, and verify that no file has changed meanwhile."""
        if any(self._numbers):
            yield self._take_part()
        self._close(slice(None))

    def _take_part(self) -> JoinedRows:
        sections = zip(self._blocks, map(tuple, self._numbers), strict=True)
        found = [(block, numbers) for block, numbers in sections if numbers]
        self._numbers, self._part_bytes = [[] for _ in self._blocks], 0
        if len(found) == 1:
            return found[0][0].file, (StoredRows(*found[0]),)
        joined = JoinedFiles([(block.file, block.mapped_errors) for block, _ in found])
        return joined, tuple(StoredRows(*each, joined.start(at)) for at, each in enumerate(found))

    def _close(self, some: slice) -> None:
        for block in self._blocks[some]:
            with block.mapped_errors():
                block.check()
            block.close()
        del self._blocks[some], self._numbers[some]
