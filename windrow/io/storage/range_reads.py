"""Files in a store: exact byte ranges, several at once, each retried until it is whole.

Arrow is handed memory. It never talks to a store itself, since it cannot try again, would wait
for ever where a client does, and takes what comes for what it asked for.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from windrow.io.storage.range_prefetch import ReadRange, Span, ask_for, join_ranges
from windrow.io.storage.retries import Retries, ShortReadError

__all__ = ["RemoteFile", "join_ranges", "read_ranges"]


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

    Attributes
    ----------
    failed
        Whether a range could not be had.
    """

    def __init__(self, read: ReadRange, size_bytes: int, retries: Retries) -> None:
        self._read_range, self._size, self._retries = read, size_bytes, retries
        self._at = 0
        self.failed = False
        self._starts: list[int] = []
        self._spans: list[Span] = []
        self._after: Future[Any] | None = None

    def fetch(self, ranges: Sequence[tuple[int, int]], then: Callable[[], Any] | None = None) -> None:
        """Begin to read ranges, in order and several at once; what reads them waits for them.

        They do not overlap, and what was asked for before is not asked for again. ``then`` is
        called when all have come; `after_all` waits for what it returns.
        """
        asked = [span for span in ranges if self._find(*span) is None]
        spans, self._after = ask_for(asked, self._bring, then)
        for span in spans:
            place = bisect_right(self._starts, span.start)
            self._starts.insert(place, span.start)
            self._spans.insert(place, span)

    def after_all(self) -> Any:
        """What was called when all ranges had come; None where more has been read since."""
        return None if self._after is None else self._after.result()

    def close(self) -> None:
        """Ask for nothing more, and let go of what has come."""
        for span in self._spans:
            span.cancel()
        self._starts, self._spans, self._after = [], [], None
        super().close()

    def read_range(self, start: int, stop: int) -> Any:
        """The bytes of a range, all of them, asked for now."""
        self._after = None
        return self._bring(start, stop)

    def _bring(self, start: int, stop: int) -> Any:
        try:
            return self._retries.read(lambda: self._read_range(start, stop), stop - start)
        except Exception:
            self.failed = True
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            # stores take that for bytes from the end
            raise OSError(f"a read at byte {at:,}, before the file's first")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> Any:
        """The bytes from here on, out of memory where they were fetched ahead."""
        start = self._at
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if stop <= start:
            return b""
        self._at = stop
        span = self._find(start, stop)
        if span is None:
            return self.read_range(start, stop)
        return span.buffer.slice(start - span.start, stop - start)

    def _find(self, start: int, stop: int) -> Span | None:
        """The span that was asked for and has a range in it."""
        place = bisect_right(self._starts, start) - 1
        return self._spans[place] if place >= 0 and stop <= self._spans[place].stop else None
