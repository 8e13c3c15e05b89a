"""Reads some rows of a row group: of each column the pages that hold them, and the dictionary that these need.

What the C decoder supports, it decodes from these pages directly; Arrow reads all else from small files that are made
of them (`windrow.io.parquet.leaf_files`). Where pages are not found, Arrow streams the row group up to the last row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from windrow.core.phase_clock import phase
from windrow.core.system.processes import call_in_forked_children
from windrow.io.parquet.chunks import Chunk
from windrow.io.parquet.decoder_library import CODECS
from windrow.io.parquet.leaf_files import assemble, coarsen, page_of_one_value, prune, read_leaf
from windrow.io.parquet.page_index import ChunkPages, Headers, PageSpan, measure_dictionary, read_headers
from windrow.io.parquet.stored_chunks import Fields, NestedLeaf
from windrow.io.parquet.verified_files import BlockFile, open_parquet
from windrow.io.storage.footer_cache import FooterCache
from windrow.io.storage.retries import call_ahead

# chunks of a remote file whose pages are looked for at a time, each with a request of up to 8 MiB
_LANES = 8
# of a stream: rows and bytes that are held at a time
_BATCH_ROWS, _BATCH_BYTES = 2**16, 8 * 2**20
# of a remote file's row group that is streamed: the most that is held of all its leaves together
_STREAMED_BYTES = 64 * 2**20
# Of remote files: all ranges of a row group need the same dictionaries, which can be larger than their pages.
_DICTIONARIES = FooterCache(max_footers=4096, max_bytes=64 * 2**20)
call_in_forked_children(_DICTIONARIES.forget)


@dataclass(frozen=True)
class _Dictionary:
    content: pa.Buffer

    @property
    def serialized_size(self) -> int:
        return int(self.content.size)


@dataclass(frozen=True)
class _LeafRows:
    """The pages of a leaf that hold some rows."""

    span: PageSpan
    headers: Headers
    dictionary: tuple[int, int] | None  # its offset and bytes, if the pages need it


@dataclass(frozen=True, eq=False)
class RowRange:
    """Rows ``first`` to ``stop`` of a row group of an open file."""

    block: BlockFile
    group: int
    first: int
    stop: int
    _leaves: dict[int, _LeafRows | None] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.stop - self.first

    # --- for the C decoder

    def chunks(self, fields: Fields) -> list[Chunk | None]:
        """The chunk of each field with these rows alone."""
        known = self.block.footer.stored_columns(self.group, fields).chunks
        return [
            None if chunk is None or each is None else self._cut_chunk(chunk, each[0])
            for chunk, each in zip(known, fields, strict=True)
        ]

    def _cut_chunk(self, chunk: Chunk, name: str) -> Chunk | None:
        column = self.block.footer.leaves(name)
        found = None if column is None else self._find_rows(column[1].start)
        if found is None or found.headers.values != found.span.stop_row - found.span.first_row:
            return None
        span, raw_bytes, size_bytes = found.span, found.headers.raw_bytes, found.span.stop - found.span.start
        if raw_bytes < 0:
            return None
        if chunk.is_text:
            if found.dictionary is not None:
                raw_bytes += measure_dictionary(self.block.read_range(*_as_range(found.dictionary))) or 0
                size_bytes += found.dictionary[1]
            # as of whole chunks: memory for text is allocated by this size
            if raw_bytes > CODECS[chunk.codec].max_ratio * size_bytes:
                return None
        return chunk._replace(
            start=span.start,
            size_bytes=span.stop - span.start,
            rows=self.num_rows,
            raw_bytes=raw_bytes,
            before=self.first - span.first_row,
            behind=span.stop_row - self.stop,
            dictionary=found.dictionary,
        )

    def nested(self, name: str, kind: pa.DataType) -> tuple[NestedLeaf, ...] | None:
        """`StoredFooter.nested` of these rows."""
        known = self.block.footer.nested(self.group, name, kind)
        if known is None:
            return None
        found = [leaf for leaf in map(self._cut_leaf, known) if leaf is not None]
        return tuple(found) if len(found) == len(known) else None

    def _cut_leaf(self, leaf: NestedLeaf) -> NestedLeaf | None:
        found = self._find_rows(leaf.number)
        if found is None:
            return None
        span, ahead = found.span, self._read_ahead(found, leaf.number)
        rows, added = span.stop_row - span.first_row, not span.begins_row
        first = self.first - span.first_row + added
        return leaf._replace(
            start=span.start,
            size_bytes=span.stop - span.start,
            rows=rows + added,
            values=found.headers.values + added,
            ahead=pa.py_buffer(b"".join(ahead)) if ahead else None,
            kept=slice(first, first + self.num_rows),
        )

    # --- for Arrow

    def read(self, fields: Sequence[pa.Field[Any]], **options: Any) -> pa.Table:
        """Read columns as Arrow does, whole structs too; ``options`` are of ``pyarrow.parquet.ParquetFile``.

        Columns that the file lacks are left out.
        """
        names = [field.name for field in fields if self.block.footer.leaves(field.name) is not None]
        found = {name: self._read_column(name, options) for name in names}
        others = [name for name, column in found.items() if column is None]
        if others or not names:
            streamed = self._stream(others, options)
            if not names:
                return streamed
            found |= {name: streamed.column(name) for name in others}
        return pa.table([found[name] for name in names], names=names)

    def _read_column(self, name: str, options: Mapping[str, Any]) -> pa.ChunkedArray | None:
        """Read a column from its pages; None if they are not found, or are not as expected."""
        column = self.block.footer.leaves(name)
        if column is None:
            return None
        kind, leaves = column
        if options:
            kind = coarsen(kind)
        found = [(leaf, self._find_rows(leaf)) for leaf in leaves]
        stored = [(leaf, rows, self._read_pages(leaf, rows)) for leaf, rows in found if rows is not None]
        if not stored or len(stored) < len(found):
            return None
        try:
            # the bytes are at hand, so what fails now is decoding: the stream has all rows, or a proper error
            read = [self._read_leaf(kind, leaves, *each, options) for each in stored]
            if read[0].type == kind and len(read) == 1:
                return read[0]
            return pa.chunked_array([assemble(kind, [_join(leaf) for leaf in read])])
        except MemoryError:
            raise
        except Exception:
            return None

    def _read_pages(self, leaf: int, rows: _LeafRows) -> list[Any]:
        return [*self._read_ahead(rows, leaf), self.block.read_range(rows.span.start, rows.span.stop)]

    def _read_leaf(
        self,
        kind: pa.DataType,
        leaves: range,
        leaf: int,
        found: _LeafRows,
        pages: list[Any],
        options: Mapping[str, Any],
    ) -> pa.ChunkedArray:
        span, added = found.span, not found.span.begins_row
        first = self.first - span.first_row + added
        return read_leaf(
            self.block.footer.structs,
            self.group,
            leaf,
            prune(kind, leaf - leaves.start),
            pages,
            rows=span.stop_row - span.first_row + added,
            values=found.headers.values + added,
            dictionary_bytes=0 if found.dictionary is None else found.dictionary[1],
            kept=range(first, first + self.num_rows),
            **options,
        )

    def _stream(self, names: Sequence[str], options: Mapping[str, Any]) -> pa.Table:
        """Read columns by streaming the row group up to the last row."""
        footer = self.block.footer
        row_group = footer.metadata.row_group(self.group)
        paths = footer.leaf_paths(pa.field(name, footer.stored_type(name)) for name in names)
        stored = open_parquet(self.block, buffer_size=self._buffer_bytes(paths), **options)
        if not names:
            return stored.read_row_groups([self.group], columns=[]).slice(self.first, self.num_rows)
        rows = _BATCH_BYTES * row_group.num_rows // max(1, row_group.total_byte_size)
        batches = stored.iter_batches(
            batch_size=max(1, min(rows, _BATCH_ROWS)),
            row_groups=[self.group],
            columns=paths,
            use_threads=False,
        )
        kept, at = [], 0
        for batch in batches:
            first, stop = max(self.first - at, 0), min(self.stop - at, batch.num_rows)
            at += batch.num_rows
            if first < stop:
                kept.append(batch.slice(first, stop - first))
            if at >= self.stop:
                return pa.Table.from_batches(kept)
        raise pa.ArrowInvalid(f"pages hold {at} rows where the footer states {row_group.num_rows}")

    def _buffer_bytes(self, paths: Sequence[str]) -> int:
        """The bytes of the buffer through which Arrow streams each leaf; 0: it reads whole chunks into memory.

        A corrupt page header makes Arrow take as much memory as it states, unless the whole chunk is in memory.
        """
        sizes = [stop - start for start, stop in self.block.footer.ranges([self.group], paths)]
        if self.block.remote is None or sum(sizes) <= _STREAMED_BYTES:
            return 0
        return max(1, min(_BATCH_BYTES, _STREAMED_BYTES // len(sizes)))

    # --- pages

    def _find_rows(self, leaf: int) -> _LeafRows | None:
        if leaf not in self._leaves:
            self._leaves[leaf] = self._look_up_rows(leaf)
        return self._leaves[leaf]

    def _look_up_rows(self, leaf: int) -> _LeafRows | None:
        block = self.block
        pages = _pages_of(block, self.group, leaf)
        span = pages.cover(block.read_range, self.first, self.stop) if pages is not None else None
        if pages is None or span is None:
            return None
        stored = block.read_range(span.start, span.stop)
        headers = read_headers(stored) if stored.size == span.stop - span.start else None
        if headers is None or headers.rows not in (-1, span.stop_row - span.first_row):
            return None
        if not headers.needs_dictionary:
            return _LeafRows(span, headers, None)
        if pages.dictionary is None:
            return None
        if block.remote is not None:
            content = block.read_range(*_as_range(pages.dictionary))
            # a copy: it is a part of all that was requested with it
            _DICTIONARIES.get(_key_of(pages), lambda: _Dictionary(pa.py_buffer(content.to_pybytes())))
        return _LeafRows(span, headers, pages.dictionary)

    def _read_ahead(self, rows: _LeafRows, leaf: int) -> list[Any]:
        """The pages to put ahead of those of the rows."""
        ahead = [] if rows.dictionary is None else [self.block.read_range(*_as_range(rows.dictionary))]
        if not rows.span.begins_row:
            levels = self.block.footer.metadata.schema.column(leaf)
            structs = self.block.footer.structs
            ahead.append(
                page_of_one_value(structs, leaf, levels.max_definition_level, levels.max_repetition_level)
            )
        return ahead


def open_ranges(block: BlockFile, names: Sequence[str], part_bytes: int | None = None) -> list[RowRange]:
    """The rows of a block that is a part of a row group, in ranges of about ``part_bytes``; all at once without.

    All pages of a remote file are requested now.
    """
    groups, row_group = block.groups, block.footer.metadata.row_group(block.groups.start)
    first, stop = groups.first_row, groups.stop_row if groups.stop_row >= 0 else row_group.num_rows
    if not (groups.stop == groups.start + 1 and 0 <= first <= stop <= row_group.num_rows):
        raise pa.ArrowInvalid(f"the row group has {row_group.num_rows} rows, not rows {first} to {stop}")
    if first == stop:
        return []
    leaves = [
        leaf for name in names for _, some in [block.footer.leaves(name) or (None, ())] for leaf in some
    ]
    if block.remote is not None:
        with phase("storage"):
            _request_pages(block, leaves, first, stop)
    cuts = [first, stop]
    if part_bytes is not None:
        total = row_group.total_byte_size * (stop - first) // row_group.num_rows
        cuts = _cut(block, leaves, first, stop, max(1, round(total / part_bytes)))
    return [RowRange(block, groups.start, *cut) for cut in pairwise(cuts)]


def _cut(block: BlockFile, leaves: Sequence[int], first: int, stop: int, parts: int) -> list[int]:
    """Cut rows into parts of about equal size, where pages of the largest column begin: others decode them twice."""
    parts = min(parts, stop - first)
    if parts == 1 or not leaves:
        return [first, stop]
    row_group = block.footer.metadata.row_group(block.groups.start)
    largest = max(leaves, key=lambda leaf: int(row_group.column(leaf).total_compressed_size))
    pages = _pages_of(block, block.groups.start, largest)
    known = pages is not None and pages.cover(block.read_range, first, stop) is not None
    step = (stop - first) / parts
    cuts = {first, stop}
    for part in range(1, parts):
        cut = round(first + part * step)
        near = pages.nearest_start(cut) if pages is not None and known else cut
        cuts.add(near if abs(near - cut) <= step / 2 and first < near < stop else cut)
    return sorted(cuts)


def _pages_of(block: BlockFile, group: int, leaf: int) -> ChunkPages | None:
    return block.footer.pages(group, leaf, is_mapped=block.remote is None)


def _request_pages(block: BlockFile, leaves: Iterable[int], first: int, stop: int) -> None:
    """Request the pages of some rows, and their dictionaries, of a remote file."""
    assert block.remote is not None, "only remote files need requests"
    found = [_pages_of(block, block.groups.start, leaf) for leaf in leaves]
    chunks = [pages for pages in found if pages is not None]
    block.fetch_ranges([_as_range(pages.unread_index) for pages in chunks if pages.unread_index is not None])
    calls = [partial(pages.cover, block.read_range, first, stop) for pages in chunks]
    spans = [future.result() for future in call_ahead(calls, _LANES, "windrow-pages")]
    ranges = [(span.start, span.stop) for span in spans if span is not None]
    for pages in chunks:
        if pages.dictionary is None:
            continue
        known = _DICTIONARIES.find(_key_of(pages))
        if known is None:
            ranges.append(_as_range(pages.dictionary))
        else:
            block.remote.hold(pages.dictionary[0], known.content)
    block.fetch_ranges(ranges)


def _key_of(pages: ChunkPages) -> bytes:
    return str(pages.number).encode()


def _as_range(place: tuple[int, int]) -> tuple[int, int]:
    return place[0], place[0] + place[1]


def _join(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)
