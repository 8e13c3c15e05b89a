"""Arrow IPC files (including Feather V2) and streams; each record batch is a row group."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError
from windrow.io.catalog.fragments import Fragment, digest_ends, fetch_ends
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.formats.block_files import OpenFile, open_path
from windrow.io.formats.ipc_columns import find_columns, summarise_batches
from windrow.io.formats.ipc_messages import Layout, Message, find_messages, read_header
from windrow.io.formats.table_reader import PART_BYTES, TableReader
from windrow.io.parquet.footer_cache import FooterCache
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["ArrowFormat"]

_CORRUPTION = (ValueError, struct.error)
# message layouts, so that the blocks of a file parse them once per process
_LAYOUTS = FooterCache(max_footers=64, max_bytes=16 * 2**20)


@dataclass(frozen=True)
class ArrowFormat:
    """Arrow IPC: headers yield rows, nulls and sizes, and columns are read selectively."""

    name: str = "Arrow"
    options: str = ""
    rows_known: bool = True
    joins_files: bool = False

    def look(self, files: Files, path: str) -> Fragment:
        """Read a file's message headers.

        Raises
        ------
        SourceError
            If the file cannot be read or is not Arrow IPC.
        """
        version, name = files.look(path), files.name(path)
        with open_path(files, path, version.size_bytes) as file:
            fetch_ends(file.fetch, version.size_bytes)
            digest = digest_ends(file.read_range, version.size_bytes)
            try:
                layout = find_messages(file)
                file.fetch([(batch.start, batch.body) for batch in layout.batches])
                headers = [read_header(file, batch) for batch in layout.batches]
                facts = summarise_batches(layout.schema, headers)
            except _CORRUPTION as error:
                raise SourceError(f"{name} {error}: {_FIX}") from files.cause(error)
        return Fragment(version, digest, facts)

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableReader:
        """Make a reader of record batches."""
        return TableReader(self, files, schema, stored, partitions, row_filter)

    def can_map(self, schema: pa.Schema) -> bool:
        """Whether no column's values stay shared with rows that are taken from it."""
        return not any(_shares_memory(field.type) for field in schema)

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read record batches ``start`` to ``stop`` as one table."""
        return pa.concat_tables(self.tables(file, start, stop, schema))

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read record batches, grouped to about one part in size."""
        with _corruption_is_invalid():
            layout = _cached_layout(file)
            names = layout.schema.names
            needed = sorted(names.index(name) for name in schema.names) or [0]
            part: list[pa.RecordBatch] = []
            part_bytes = 0
            for whole in _read_batches(file, layout, start, stop, needed):
                batch = whole.select([names[number] for number in needed])
                _validate(batch)
                part.append(batch)
                part_bytes += batch.nbytes
                if part_bytes >= PART_BYTES:
                    yield pa.Table.from_batches(part)
                    part, part_bytes = [], 0
            if part:
                yield pa.Table.from_batches(part)


_FIX = "restore the file, write it again, or exclude it"


def _cached_layout(file: OpenFile) -> Layout:
    if not file.version:
        return find_messages(file)
    key = f"{file.name}\n{file.size_bytes}\n{file.version}".encode()
    return _LAYOUTS.get(key, lambda: find_messages(file))


def _read_batches(
    file: OpenFile, layout: Layout, start: int, stop: int, needed: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    batches = layout.batches[start:stop]
    chosen = [] if _reads_all_columns(file, batches, len(needed) == len(layout.schema)) else list(needed)
    # parallelism is across blocks
    options = pa.ipc.IpcReadOptions(included_fields=chosen, use_threads=False)
    if layout.is_file:
        _fetch_columns(file, layout, batches, needed)
        stored = pa.ipc.open_file(file.file, options=options)
        yield from (stored.get_batch(number) for number in range(start, stop))
    else:
        messages = _needed_messages(layout, start, stop)
        file.fetch([(message.start, message.stop) for message in messages])
        spliced = _SplicedStream(file, messages)
        with pa.PythonFile(spliced, mode="r") as joined:
            yield from pa.ipc.open_stream(joined, options=options)


def _reads_all_columns(file: OpenFile, batches: Sequence[Message], all_columns: bool) -> bool:
    """Whether to read all columns: for a mapped, uncompressed file, a column selection would make Arrow copy."""
    if all_columns or not isinstance(file.file, pa.MemoryMappedFile):
        return all_columns
    return not any(read_header(file, batch).compressed for batch in batches[:1])


def _fetch_columns(file: OpenFile, layout: Layout, batches: Sequence[Message], needed: Sequence[int]) -> None:
    """Prefetch from object storage what some columns of some batches need."""
    if file.path is not None:
        return
    file.fetch([(batch.start, batch.body) for batch in batches])
    ranges = [(message.start, message.stop) for message in layout.dictionaries]
    for batch in batches:
        columns = find_columns(layout.schema, read_header(file, batch))
        spans = [span for number in needed for span in columns[number].buffers]
        ranges += [(batch.body + begin, batch.body + begin + size) for begin, size in spans]
    file.fetch(ranges)


def _needed_messages(layout: Layout, start: int, stop: int) -> list[Message]:
    """The messages that a range of a stream's batches needs: schema, dictionaries as of its start, and the range."""
    whole: dict[int, list[Message]] = {}
    within: list[Message] = []
    number = 0
    for message in layout.messages:
        if number == stop:
            break
        if message.dictionary is None:
            if number >= start:
                within.append(message)
            number += 1
        elif number > start:
            within.append(message)
        elif message.is_delta:
            whole.setdefault(message.dictionary, []).append(message)
        else:
            whole.pop(message.dictionary, None)
            whole[message.dictionary] = [message]
    # each dictionary must precede every delta
    firsts = [messages[0] for messages in whole.values()]
    added = [message for messages in whole.values() for message in messages[1:]]
    return [layout.first, *firsts, *added, *within]


class _SplicedStream(io.RawIOBase):
    """A stream that consists of some messages of a file only."""

    def __init__(self, file: OpenFile, messages: Sequence[Message]) -> None:
        self._file = file
        self._left = [(message.start, message.stop) for message in reversed(messages)]

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> Any:
        """The next bytes, from at most one message, as Arrow requests them."""
        if not self._left or size is None or size <= 0:
            return b""
        start, stop = self._left.pop()
        end = min(stop, start + size)
        if end < stop:
            self._left.append((end, stop))
        return self._file.read_range(start, end)


def _validate(batch: pa.RecordBatch) -> None:
    """Validate that no offset points outside the batch, which would crash the process."""
    for column in batch.columns:
        column.validate(full=fixed_bits(column.type) is None)


def _shares_memory(kind: pa.DataType) -> bool:
    """Whether rows taken from an array keep the whole array's memory alive."""
    if isinstance(kind, pa.BaseExtensionType):
        return _shares_memory(kind.storage_type)
    views = (pt.is_string_view, pt.is_binary_view, pt.is_list_view, pt.is_large_list_view)
    if pt.is_dictionary(kind) or any(is_kind(kind) for is_kind in views):
        return True
    return any(_shares_memory(kind.field(place).type) for place in range(kind.num_fields))


@contextmanager
def _corruption_is_invalid() -> Iterator[None]:
    """Raise corruption as ``ArrowInvalid``, which callers recognise."""
    try:
        yield
    except _CORRUPTION as error:
        raise pa.ArrowInvalid(str(error)) from error
