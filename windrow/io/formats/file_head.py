"""Inspect a file that has no footer: its version, a digest of its two ends, and its first bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from windrow.io.catalog.fragments import END_BYTES, Fragment, FragmentFacts, digest_ends
from windrow.io.formats.block_files import OpenFile, open_path
from windrow.io.formats.compression import decompress, decompress_head
from windrow.io.storage.filesystems import Files

__all__ = ["HEAD_BYTES", "Head", "look_at", "read_heads"]

HEAD_BYTES = 256 * 1024
# the decompressed head is several times as large
_COMPRESSED_HEAD_BYTES = 64 * 1024
_GROWTH = 4


@dataclass(frozen=True, eq=False)
class Head:
    """The first bytes of a file.

    Attributes
    ----------
    data
        The bytes, decompressed.
    whole
        Whether they are the entire file.
    content_bytes
        The decompressed size of the file; an estimate unless ``whole``.
    """

    data: pa.Buffer
    whole: bool
    content_bytes: int


def look_at(files: Files, path: str, summarise: Callable[[OpenFile], FragmentFacts]) -> Fragment:
    """Inspect a file; ``summarise`` reads what it needs, usually only the head.

    Raises
    ------
    SourceError
        If the file cannot be read, or ``summarise`` finds another format.
    """
    version = files.look(path)
    size = version.size_bytes
    with open_path(files, path, size) as file:
        file.fetch([(0, min(HEAD_BYTES, size)), (max(size - END_BYTES, 0), size)])
        return Fragment(version, digest_ends(file.read_range, size), summarise(file))


def read_heads(file: OpenFile, codec: str | None) -> Iterator[Head]:
    """Yield ever longer heads of a file; the last one is the whole file.

    Raises
    ------
    OSError
        If the file cannot be decompressed.
    """
    stored = HEAD_BYTES if codec is None else _COMPRESSED_HEAD_BYTES
    while stored < file.size_bytes:
        data = decompress_head(codec, file.read_range(0, stored))
        yield Head(data, False, max(file.size_bytes * data.size // stored, 1))
        stored *= _GROWTH
    data = decompress(codec, file.read_range(0, file.size_bytes))
    yield Head(data, True, data.size)
