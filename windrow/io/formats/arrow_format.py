"""Arrow IPC files (including Feather V2) and streams; each record batch is a row group."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.arrow_support import decode_runs, decoded_schema, holds_runs
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.catalog.value_sizes import child_types, fixed_bits, storage_type
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.ipc_messages import BatchHeader, Layout, Message, find_messages, read_header
from windrow.io.formats.row_group_format import RowGroupFormat, corruption_is_invalid, group_by_bytes
from windrow.io.storage.footer_cache import FooterCache

# message layouts, so that the blocks of a file parse them once per process
_LAYOUTS = FooterCache(max_footers=64, max_bytes=16 * 2**20)
# estimated ratio of compression: the actual one is unknown before decoding
_GROWTH = 3


@dataclass(frozen=True)
class ArrowFormat(RowGroupFormat):
    """Arrow IPC: headers yield rows, nulls and sizes, and columns are read selectively."""

    corruption = (ValueError, struct.error)

    name: str = "Arrow"
    options: str = ""

    def summarise(self, file: OpenFile) -> FragmentFacts:
        layout = find_messages(file)
        file.fetch([(batch.start, batch.body) for batch in layout.batches])
        headers = [read_header(file, batch) for batch in layout.batches]
        return _summarise_batches(layout.schema, headers)

    def can_map(self, schema: pa.Schema) -> bool:
        """Whether no column's values stay shared with rows that are taken from it."""
        return not any(_shares_memory(field.type) for field in schema)

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        with corruption_is_invalid(self.corruption):
            layout = file.remembered(_LAYOUTS, find_messages)
            names = layout.schema.names
            # a file can lack columns; without any, one is read to count the rows
            needed = sorted(names.index(name) for name in schema.names if name in names) or [0]
            chosen = [names[number] for number in needed]
            batches = (batch.select(chosen) for batch in _read_batches(file, layout, start, stop, needed))
            for part in group_by_bytes(map(_validated, batches), arrow_bytes):
                yield decode_runs(pa.Table.from_batches(part))


@dataclass(frozen=True)
class _StoredColumn:
    """A column of a batch: its null count (None if unknown), and (offset, bytes) of its buffers in the body.

    ``growth`` is the mean length of a run, if the column is run-end encoded at some level.
    """

    nulls: int | None
    buffers: list[tuple[int, int]]
    growth: int

    @property
    def decoded_bytes(self) -> int:
        """Total bytes of its buffers, with each run as long as the mean."""
        return sum(size for _, size in self.buffers) * self.growth


def _find_columns(schema: pa.Schema, header: BatchHeader) -> list[_StoredColumn]:
    """Locate the columns of a batch; a ValueError if its header does not fit the schema."""
    views = iter(header.views)
    node = buffer = 0
    columns = []
    for field in schema:
        nodes, buffers, viewed = _count(field.type)
        buffers += sum(next(views, 0) for _ in range(viewed))
        if node >= len(header.nulls):
            break
        nulls = header.nulls[node] if _has_null_count(field.type) and header.nulls[node] >= 0 else None
        growth = _run_length(field.type, header.lengths[node : node + nodes]) if holds_runs(field.type) else 1
        columns.append(_StoredColumn(nulls, header.buffers[buffer : buffer + buffers], growth))
        node, buffer = node + nodes, buffer + buffers
    if len(columns) != len(schema) or node != len(header.nulls) or buffer != len(header.buffers):
        raise ValueError("has a batch that does not fit its schema: it is corrupt, or of Arrow before 1.0")
    return columns


def _summarise_batches(schema: pa.Schema, headers: Sequence[BatchHeader]) -> FragmentFacts:
    """Summarise the record batches of a file, whose runs are decoded."""
    found = [_find_columns(schema, header) for header in headers]
    schema = decoded_schema(schema)
    growth = [_GROWTH if header.compressed else 1 for header in headers]
    rows = [header.rows for header in headers]
    encoded = [0] * len(rows)
    variable, nulls = {}, {}
    for number, field in enumerate(schema):
        columns = [batch[number] for batch in found]
        bits = fixed_bits(field.type)
        if bits is None:
            sizes = [column.decoded_bytes * factor for column, factor in zip(columns, growth, strict=True)]
            variable[field.name] = (sizes, sizes)
        else:
            sizes = [(count * bits + 7) // 8 for count in rows]
        encoded = [before + size for before, size in zip(encoded, sizes, strict=True)]
        counts = [column.nulls for column in columns if column.nulls is not None]
        nulls[field.name] = sum(counts) if len(counts) == len(columns) else None
    return FragmentFacts(schema, rows, encoded, variable, nulls)


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
        columns = _find_columns(layout.schema, read_header(file, batch))
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


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Validate that no offset points outside the batch, which would crash the process."""
    for column in batch.columns:
        column.validate(full=fixed_bits(column.type) is None)
    return batch


def _shares_memory(kind: pa.DataType) -> bool:
    """Whether rows taken from an array keep the whole array's memory alive."""
    kind = storage_type(kind)
    views = (pt.is_string_view, pt.is_binary_view, pt.is_list_view, pt.is_large_list_view)
    if pt.is_dictionary(kind) or any(is_kind(kind) for is_kind in views):
        return True
    return any(map(_shares_memory, child_types(kind)))


def _run_length(kind: pa.DataType, lengths: Sequence[int]) -> int:
    """The longest mean run of a column, given the lengths of its arrays, depth-first."""
    kinds = list(_iterate_arrays(kind))
    # its run ends and its values follow a run-end encoded array
    runs = [
        (lengths[place], lengths[place + 2])
        for place, each in enumerate(kinds[: len(lengths) - 2])
        if pt.is_run_end_encoded(each)
    ]
    return max((-(-rows // count) for rows, count in runs if count > 0), default=1)


def _iterate_arrays(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of a column's arrays, depth-first."""
    kind = storage_type(kind)
    yield kind
    if not pt.is_dictionary(kind):
        for child in child_types(kind):
            yield from _iterate_arrays(child)


def _has_null_count(kind: pa.DataType) -> bool:
    """Whether a column's nulls are those of its outermost array."""
    kind = storage_type(kind)
    return not (pt.is_dictionary(kind) or pt.is_union(kind) or pt.is_run_end_encoded(kind))


def _count(kind: pa.DataType) -> tuple[int, int, int]:
    """A column's numbers of arrays, of buffers, and of view arrays; the latter have additional buffers."""
    kind = storage_type(kind)
    if pt.is_dictionary(kind):
        return 1, 2, 0
    viewed = pt.is_string_view(kind) or pt.is_binary_view(kind)
    own = (1, _own_buffers(kind), int(viewed))
    children = map(_count, child_types(kind))
    arrays, buffers, views = zip(own, *children, strict=True)
    return sum(arrays), sum(buffers), sum(views)


def _own_buffers(kind: pa.DataType) -> int:
    if pt.is_null(kind) or pt.is_run_end_encoded(kind):
        return 0
    if pt.is_struct(kind) or pt.is_fixed_size_list(kind):
        return 1
    if pt.is_union(kind):
        return 1 if kind.mode == "sparse" else 2
    texts = (pt.is_string, pt.is_binary, pt.is_large_string, pt.is_large_binary)
    views = (pt.is_list_view, pt.is_large_list_view)
    return 3 if any(is_kind(kind) for is_kind in (*texts, *views)) else 2
