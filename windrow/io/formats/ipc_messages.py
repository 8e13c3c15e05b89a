"""Locate the messages of an Arrow IPC file or stream, and parse their headers.

See "Serialization and Interprocess Communication (IPC)" in Arrow's columnar format, and its
``Message.fbs`` and ``File.fbs`` for the slot numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.io.formats.block_files import OpenFile

_MAGIC, _FEATHER_1 = b"ARROW1", b"FEA1"
_CONTINUATION = 0xFFFFFFFF
# an IPC file is the magic padded to 8 bytes, a stream, a footer with its length, and the magic
_BEGIN_BYTES, _END_BYTES = 8, 10
_BLOCK = "qi4xq"
# most message headers are shorter
_HEAD_BYTES = 4096
_DICTIONARY, _BATCH = 2, 3


@dataclass(frozen=True)
class Message:
    """A message: its offset, and the bytes of its header and body.

    ``dictionary`` is the id of the dictionary that it defines or, as a delta, extends; None for a record batch.
    """

    start: int
    header_bytes: int
    body_bytes: int
    dictionary: int | None = None
    is_delta: bool = False

    @property
    def body(self) -> int:
        return self.start + self.header_bytes

    @property
    def stop(self) -> int:
        return self.body + self.body_bytes


@dataclass(frozen=True)
class Layout:
    """The messages of a file or stream: the schema's, then dictionaries and batches, of a stream as stored."""

    schema: pa.Schema
    first: Message
    messages: tuple[Message, ...]
    is_file: bool

    @property
    def batches(self) -> list[Message]:
        return [message for message in self.messages if message.dictionary is None]

    @property
    def dictionaries(self) -> list[Message]:
        return [message for message in self.messages if message.dictionary is not None]

    @property
    def serialized_size(self) -> int:
        """Approximate memory of this object."""
        return 256 * (len(self.messages) + len(self.schema))


@dataclass(frozen=True)
class BatchHeader:
    """The header of a record batch.

    ``nulls`` has the null count of each array, depth-first: nested arrays follow their parents. ``lengths`` has
    the number of its values.
    ``buffers`` are offsets in the body and bytes; ``views`` the number of data buffers of each view array.
    """

    rows: int
    lengths: list[int]
    nulls: list[int]
    buffers: list[tuple[int, int]]
    views: list[int]
    compressed: bool


def find_messages(file: OpenFile) -> Layout:
    """Locate the messages of a file or stream; a ValueError if it is neither, or corrupt.

    A stream has no index: its headers are read one after the other.
    """
    begin = bytes(file.read_range(0, min(_BEGIN_BYTES, file.size_bytes)))
    if begin[:6] == _MAGIC:
        return _find_in_file(file)
    if begin[:4] == _FEATHER_1:
        raise ValueError("is Feather V1, which has no batches: write it again as Feather V2 (Arrow IPC)")
    messages = list(_iter_messages(file))
    if not messages:
        raise ValueError("is not an Arrow IPC file or stream: it does not begin like one")
    first, *others = messages
    return Layout(_schema(file, first), first, tuple(others), is_file=False)


def read_header(file: OpenFile, batch: Message) -> BatchHeader:
    """Parse the header of a record batch; a ValueError if it is corrupt."""
    kind, _, content = _parse(bytes(file.read_range(batch.start, batch.body)))
    if kind != _BATCH or content is None:
        raise ValueError("has another message in place of a record batch")
    nodes = content.structs(1, "qq")
    rows = content.scalar(0, "q")
    buffers = content.structs(2, "qq")
    if min(rows, *(number for buffer in buffers for number in buffer), 0) < 0:
        raise ValueError("has a batch with negative sizes")
    if any(begin + size > batch.body_bytes for begin, size in buffers):
        raise ValueError("has a batch with columns that lie beyond its end")
    views = [count for (count,) in content.structs(4, "q")]
    lengths, nulls = [length for length, _ in nodes], [count for _, count in nodes]
    return BatchHeader(
        rows, lengths, nulls, [(start, size) for start, size in buffers], views, content.table(3) is not None
    )


def _find_in_file(file: OpenFile) -> Layout:
    size = file.size_bytes
    end = bytes(file.read_range(max(size - _END_BYTES, 0), size))
    if end[-6:] != _MAGIC or len(end) < _END_BYTES:
        raise ValueError("is truncated: an Arrow IPC file ends with 'ARROW1'")
    (length,) = struct.unpack_from("<i", end)
    start = size - _END_BYTES - length
    if length <= 0 or start < _BEGIN_BYTES:
        raise ValueError(f"has a footer that claims {length:,} bytes")
    footer = _root_table(bytes(file.read_range(start, size - _END_BYTES)))
    dictionaries = [_make_message(size, *block, dictionary=0) for block in footer.structs(2, _BLOCK)]
    batches = [_make_message(size, *block) for block in footer.structs(3, _BLOCK)]
    first = next(_iter_messages(file, _BEGIN_BYTES), None)
    if first is None:
        raise ValueError("has no schema")
    return Layout(_schema(file, first), first, (*dictionaries, *batches), is_file=True)


def _iter_messages(file: OpenFile, start: int = 0) -> Iterator[Message]:
    """Iterate over the messages of a stream."""
    size = file.size_bytes
    while start + 4 <= size:
        head = bytes(file.read_range(start, min(start + _HEAD_BYTES, size)))
        length, before = _header_length(head)
        if length == 0:
            if start + before < size and start:
                raise ValueError(f"goes on for {size - start - before:,} bytes after the end of its stream")
            return
        stop = start + before + length
        if length < 0 or stop > size:
            raise ValueError(
                f"has a header of {length:,} bytes at byte {start:,}: it is not Arrow IPC, or is truncated"
            )
        if stop > start + len(head):
            head = bytes(file.read_range(start, stop))
        kind, body_bytes, content = _parse(head)
        is_dictionary = kind == _DICTIONARY and content is not None
        yield _make_message(
            size,
            start,
            before + length,
            body_bytes,
            dictionary=content.scalar(0, "q") if is_dictionary and content else None,
            is_delta=is_dictionary and content is not None and bool(content.scalar(2, "?")),
        )
        start = stop + body_bytes


def _make_message(
    size: int,
    start: int,
    header_bytes: int,
    body_bytes: int,
    *,
    dictionary: int | None = None,
    is_delta: bool = False,
) -> Message:
    message = Message(start, header_bytes, body_bytes, dictionary, is_delta)
    if min(start, header_bytes, body_bytes) < 0 or message.stop > size:
        raise ValueError(f"is truncated or corrupt: a message ends at byte {message.stop:,} of {size:,}")
    return message


def _header_length(head: bytes) -> tuple[int, int]:
    """The bytes of a header, and of its prefix; before Arrow 0.15 there was no continuation marker."""
    (length,) = struct.unpack_from("<I", head)
    if length != _CONTINUATION:
        return int(struct.unpack_from("<i", head)[0]), 4
    return int(struct.unpack_from("<i", head, 4)[0]), 8


def _parse(head: bytes) -> tuple[int, int, _FlatTable | None]:
    """Parse a header: the message's type, the bytes of its body, and its content."""
    length, before = _header_length(head)
    message = _root_table(head[before : before + length])
    return message.scalar(1, "B"), message.scalar(3, "q"), message.table(2)


def _schema(file: OpenFile, first: Message) -> pa.Schema:
    return pa.ipc.read_schema(file.read_range(first.start, first.stop))


@dataclass(frozen=True)
class _FlatTable:
    """A FlatBuffers table: values by slot, each optional; corrupt offsets raise ``ValueError``.

    Arrow parses these headers itself, but exposes them only after reading the message bodies.
    See https://flatbuffers.dev/internals/.
    """

    data: bytes
    at: int

    def scalar(self, slot: int, form: str) -> int:
        """A number, 0 by default; ``form`` is its `struct` format character."""
        place = self._place(slot)
        return 0 if place is None else int(_unpack(form, self.data, place))

    def table(self, slot: int) -> _FlatTable | None:
        place = self._place(slot)
        return None if place is None else _FlatTable(self.data, place + _unpack("I", self.data, place))

    def structs(self, slot: int, form: str) -> list[tuple[Any, ...]]:
        """A vector of structs or numbers."""
        place = self._place(slot)
        if place is None:
            return []
        start = place + _unpack("I", self.data, place)
        stop = start + 4 + _unpack("I", self.data, start) * struct.calcsize("<" + form)
        if stop > len(self.data):
            raise ValueError("has a corrupt header: a vector ends outside of it")
        return list(struct.iter_unpack("<" + form, self.data[start + 4 : stop]))

    def _place(self, slot: int) -> int | None:
        vtable = self.at - _unpack("i", self.data, self.at)
        size = _unpack("H", self.data, vtable)
        offset = _unpack("H", self.data, vtable + 4 + 2 * slot) if 6 + 2 * slot <= size else 0
        return self.at + offset if offset else None


def _root_table(data: bytes) -> _FlatTable:
    """The root table of a buffer."""
    return _FlatTable(data, _unpack("I", data, 0))


def _unpack(form: str, data: bytes, place: int) -> int:
    if not 0 <= place <= len(data) - struct.calcsize("<" + form):
        raise ValueError("has a corrupt header: an offset points outside of it")
    return int(struct.unpack_from("<" + form, data, place)[0])
