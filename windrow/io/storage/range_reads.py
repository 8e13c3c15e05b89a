"""Remote files: reads exact byte ranges concurrently, and retries each until it is complete.

Arrow gets the bytes from memory and sends no requests itself: it cannot retry, hangs indefinitely when a
client does, and does not detect short reads.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from windrow.io.storage.range_prefetch import ReadRange, Span, join_ranges, start_requests
from windrow.io.storage.retries import Retries, ShortReadError

__all__ = ["RemoteFile", "join_ranges", "read_ranges"]


def read_ranges(filesystem: Any, path: str) -> ReadRange:
    """Return a thread-safe function that reads a range of a file, completely or not at all."""
    if hasattr(filesystem, "cat_file"):
        return _FsspecRanges(filesystem, path)
    return _ArrowRanges(filesystem, path)


class _FsspecRanges:
    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem, self._path = filesystem, path

    def __call__(self, start: int, stop: int) -> Any:
        data = self._filesystem.cat_file(self._path, start=start, end=stop)
        if len(data) != stop - start:
            raise _make_short_read_error(start, stop)
        return data


class _ArrowRanges:
    """Reads ranges with pooled file handles, since opening one costs a request.

    Arrow's S3 client reports a truncated response as complete, and leaves the rest of the buffer
    as it was. So the last byte is set to a marker before the read and must change; if it does not,
    it can really have the marker's value, so the read is repeated once with another marker.
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
        raise _make_short_read_error(start, stop)


def _make_short_read_error(start: int, stop: int) -> ShortReadError:
    return ShortReadError(f"received fewer than the {stop - start:,} bytes requested at offset {start:,}")


class RemoteFile(io.RawIOBase):
    """A remote file for ``pyarrow.PythonFile``, read by ranges; serves prefetched ranges from memory.

    Parameters
    ----------
    read
        Reads a range.
    size_bytes
        The file's size.
    retries
        How long reads of a range are retried.

    Attributes
    ----------
    failed
        Whether reading a range has failed.
    """

    def __init__(self, read: ReadRange, size_bytes: int, retries: Retries) -> None:
        self._read_range, self._size, self._retries = read, size_bytes, retries
        self._offset = 0
        self.failed = False
        self._starts: list[int] = []
        self._spans: list[Span] = []
        self._after: Future[Any] | None = None

    def fetch(self, ranges: Sequence[tuple[int, int]], then: Callable[[], Any] | None = None) -> None:
        """Start prefetching ranges, in order and concurrently; reads of these ranges then wait for them.

        The ranges must not overlap; those already requested are not requested again. ``then`` is
        called when all have arrived; `fetch_result` waits for its result.
        """
        new = [span for span in ranges if self._find(*span) is None]
        spans, self._after = start_requests(new, self._read_with_retries, then)
        for span in spans:
            place = bisect_right(self._starts, span.start)
            self._starts.insert(place, span.start)
            self._spans.insert(place, span)

    def fetch_result(self) -> Any:
        """Wait for the result of ``then``; None without one, or if other ranges were read since."""
        return None if self._after is None else self._after.result()

    def close(self) -> None:
        """Cancel pending requests and release the prefetched bytes."""
        for span in self._spans:
            span.cancel()
        self._starts, self._spans, self._after = [], [], None
        super().close()

    def read_range(self, start: int, stop: int) -> Any:
        """Read a range now, bypassing the prefetched ones."""
        self._after = None
        return self._read_with_retries(start, stop)

    def _read_with_retries(self, start: int, stop: int) -> Any:
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
        return self._offset

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset + (0, self._offset, self._size)[whence]
        if target < 0:
            # object storage would count these bytes from the end
            raise OSError(f"cannot seek to byte {target:,}, before the start of the file")
        self._offset = target
        return target

    def read(self, size: int | None = -1) -> Any:
        """Read from the current offset; from memory if the range was prefetched."""
        start = self._offset
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if stop <= start:
            return b""
        self._offset = stop
        span = self._find(start, stop)
        if span is None:
            return self.read_range(start, stop)
        return span.buffer.slice(start - span.start, stop - start)

    def _find(self, start: int, stop: int) -> Span | None:
        """Return the prefetched span that contains a range."""
        place = bisect_right(self._starts, start) - 1
        return self._spans[place] if place >= 0 and stop <= self._spans[place].stop else None
