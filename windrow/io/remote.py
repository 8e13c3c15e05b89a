"""Files in a store: exact byte ranges, several at once, each retried until it is whole.

Arrow is handed memory. It never talks to a store itself, since it cannot try again, would wait
for ever where a client does, and takes what comes for what it asked for.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.io.retries import Retries, ShortReadError

__all__ = ["RemoteFile", "join_ranges", "read_ranges"]

# requests for one block at once
_LANES = 8
# a request costs as much as some bytes that nobody needs
_HOLE_BYTES = 64 * 1024
_JOINED_BYTES = 16 * 2**20

ReadRange = Callable[[int, int], Any]


def read_ranges(filesystem: Any, path: str) -> ReadRange:
    """What reads a range of a file, whole or not at all; may be called by several threads."""
    if hasattr(filesystem, "cat_file"):
        return _FsspecRanges(filesystem, path)
    return _ArrowRanges(filesystem, path)


class _FsspecRanges:
    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path

    def __call__(self, start: int, stop: int) -> Any:
        data = self._filesystem.cat_file(self._path, start=start, end=stop)
        if len(data) != stop - start:
            raise _short(start, stop)
        return data


class _ArrowRanges:
    """Reads by handles that are used again: opening one is a request.

    Arrow's S3 client takes an answer that is too short for a whole one, and leaves what was in
    memory before. So the last byte is set beforehand, and must change; if it does not, it may
    have that very value, and must change with another one.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path
        self._idle: list[Any] = []

    def __call__(self, start: int, stop: int) -> Any:
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._filesystem.open_input_file(self._path)
        data = np.empty(stop - start, np.uint8)
        for mark in (0x5A, 0xA5):
            data[-1] = mark
            file.seek(start)
            count = file.readinto(data)
            if count == len(data) and data[-1] != mark:
                self._idle.append(file)
                return data
        raise _short(start, stop)


def _short(start: int, stop: int) -> ShortReadError:
    return ShortReadError(f"fewer bytes came than the {stop - start:,} asked for, from byte {start:,} on")


class RemoteFile(io.RawIOBase):
    """A file that is read by ranges, for ``pyarrow.PythonFile``; what is fetched ahead is memory.

    Parameters
    ----------
    read
        Reads a range.
    size_bytes
        The file's size.
    retries
        How long a range is tried again.
    """

    def __init__(self, read: ReadRange, size_bytes: int, retries: Retries) -> None:
        self._read_range, self._size, self._retries = read, size_bytes, retries
        self._at = 0
        self._starts: list[int] = []
        self._fetched: list[Any] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read ranges ahead, several at once; they are sorted and do not overlap."""
        with ThreadPoolExecutor(max(1, min(_LANES, len(ranges))), "windrow-ranges") as threads:
            fetched = list(threads.map(lambda span: self.read_range(*span), ranges))
        self._starts = [start for start, _ in ranges]
        self._fetched = [pa.py_buffer(data) for data in fetched]

    def read_range(self, start: int, stop: int) -> Any:
        """The bytes of a range, all of them."""
        return self._retries.read(lambda: self._read_range(start, stop), stop - start)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> Any:
        """The bytes from here on, out of memory where they were fetched ahead."""
        start = self._at
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if stop <= start:
            return b""
        self._at = stop
        place = bisect_right(self._starts, start) - 1
        if place >= 0 and stop - self._starts[place] <= self._fetched[place].size:
            return self._fetched[place].slice(start - self._starts[place], stop - start)
        return self.read_range(start, stop)


def join_ranges(ranges: Sequence[tuple[int, int]], size_bytes: int) -> list[tuple[int, int]]:
    """Sort the ranges that lie in a file of this size, and join those with small holes between them."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(span for span in ranges if 0 <= span[0] < span[1] <= size_bytes):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        elif joined and start - joined[-1][1] <= _HOLE_BYTES and stop - joined[-1][0] <= _JOINED_BYTES:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
