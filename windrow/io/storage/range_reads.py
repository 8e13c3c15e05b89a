"""Remote files: reads exact byte ranges concurrently, and retries each until it is complete.

Arrow gets the bytes from memory and sends no requests itself: it cannot retry, hangs indefinitely when a
client does, and does not detect short reads.
"""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.cached_properties import cached_property
from windrow.core.phase_clock import count_request, counting, current_clock, phase
from windrow.io.storage.forked_filesystems import in_this_process
from windrow.io.storage.retries import Retries, ShortReadError, call_ahead

ReadRange = Callable[[int, int], Any]

# Larger requests are not faster, and delay those behind them.
_REQUEST_BYTES = 16 * 2**20
# In flight per file: saturates the network with large requests, and hides latency with small ones.
_IN_FLIGHT_BYTES = 128 * 2**20
_MIN_LANES, _MAX_LANES = 8, 32
# Gaps between ranges are read too where separate requests would cost more: up to
# the larger of these bytes in total and this share of the requested bytes.
_GAP_BYTES, _GAP_SHARE = 64 * 1024, 1 / 32


class NoRangesError(OSError):
    """The server sends files only as a whole; ``read_whole`` gets the file, and reads ranges of it."""

    def __init__(self, read_whole: ReadRange) -> None:
        super().__init__("the server does not support range requests")
        self.read_whole = read_whole


def check_content_range(header: str | None, start: int) -> None:
    """Raise an `OSError` if a response states that it has another range, as some caches send; it may state none."""
    if header and not re.match(rf"bytes\s+{start}-", header.strip(), re.IGNORECASE):
        raise OSError(f"the server sent another range than that from byte {start:,}: {header}")


def read_ranges(filesystem: Any, path: str) -> ReadRange:
    """Return a thread-safe function that reads a range of a file, completely or not at all."""
    if not hasattr(filesystem, "cat_file"):
        return _ArrowRanges(filesystem, path)
    own = in_this_process(filesystem)
    return partial(_read_exactly, lambda start, stop: own.cat_file(path, start=start, end=stop))


def _read_exactly(read: ReadRange, start: int, stop: int) -> Any:
    data = read(start, stop)
    if len(data) < stop - start:
        raise _make_short_read_error(start, stop)
    if len(data) > stop - start:
        # of a server that ignores ranges, whose answer to a retry is the same
        raise OSError(
            f"received {len(data):,} bytes, and not the {stop - start:,} requested at offset {start:,}"
        )
    return data


class _ArrowRanges:
    """Reads ranges with pooled file handles, since opening one costs a request.

    Arrow's S3 client reports a truncated response as complete, and leaves the rest of the buffer as it was.
    So the last byte is set to a marker before the read and must change; if it does not, it can really have
    the marker's value, so the read is repeated once with another marker.
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


class SeekableFile(io.RawIOBase):
    """The position within a file of a known size; reading is up to subclasses."""

    def __init__(self, size_bytes: int) -> None:
        self._size, self._offset = size_bytes, 0

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


class RemoteFile(SeekableFile):
    """A remote file for ``pyarrow.PythonFile``, read by ranges; serves prefetched ranges from memory.

    ``failed`` tells whether reading a range has failed.
    """

    def __init__(self, read: ReadRange, size_bytes: int, retries: Retries) -> None:
        super().__init__(size_bytes)
        self._read_range, self._retries = read, retries
        self._clock = current_clock()
        self.failed = False
        self._starts: list[int] = []
        self._spans: list[_Span] = []
        # known bytes, by their offset
        self._held: dict[int, pa.Buffer] = {}
        self._after: Future[Any] | None = None

    def fetch(self, ranges: Sequence[tuple[int, int]], then: Callable[[], Any] | None = None) -> None:
        """Start prefetching ranges, in order and concurrently; reads of these ranges then wait for them.

        The ranges must not overlap; those already requested are not requested again. ``then`` is called when
        all have arrived; `fetch_result` waits for its result.
        """
        new = [span for span in ranges if self._find(*span) is None]
        spans, self._after = _start_requests(new, self._read_with_retries, then)
        for span in spans:
            place = bisect_right(self._starts, span.start)
            self._starts.insert(place, span.start)
            self._spans.insert(place, span)

    def hold(self, start: int, data: Any) -> None:
        self._held[start] = pa.py_buffer(data)

    def fetch_result(self) -> Any:
        """Wait for the result of ``then``; None without one, or if other ranges were read since."""
        if self._after is None:
            return None
        with phase("storage"):
            return self._after.result()

    def close(self) -> None:
        """Cancel pending requests and release the prefetched bytes."""
        for span in self._spans:
            span.cancel()
        self._starts, self._spans, self._held, self._after = [], [], {}, None
        super().close()

    def read_range(self, start: int, stop: int) -> Any:
        """Read a range now, bypassing the prefetched ones; a large one with concurrent requests."""
        self._after = None
        if stop - start <= _REQUEST_BYTES:
            return self._read_with_retries(start, stop)
        (span,), _ = _start_requests([(start, stop)], self._read_with_retries, None)
        try:
            return span.buffer
        except BaseException:
            span.cancel()
            raise

    def _read_with_retries(self, start: int, stop: int) -> Any:
        try:
            with counting(self._clock) if current_clock() is None else nullcontext():
                count_request(stop - start)
                try:
                    return self._retries.read(lambda: self._read_range(start, stop), stop - start)
                except NoRangesError as error:
                    whole = error.read_whole
                    return self._retries.read(lambda: _read_exactly(whole, start, stop), self._size)
        except Exception:
            self.failed = True
            raise

    def read(self, size: int | None = -1) -> Any:
        """Read from the current offset; from memory if the range was prefetched."""
        start = self._offset
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if stop <= start:
            return b""
        self._offset = stop
        # Arrow reads in a thread of its own where it filters
        with counting(self._clock, lanes=1) if current_clock() is None else nullcontext(), phase("storage"):
            return self.read_at(start, stop)

    def read_at(self, start: int, stop: int) -> Any:
        """Read a range, from memory if it was prefetched; from any thread."""
        held = self._held.get(start)
        if held is not None and stop - start <= held.size:
            return held.slice(0, stop - start)
        span = self._find(start, stop)
        if span is None:
            return self.read_range(start, stop)
        return span.buffer.slice(start - span.start, stop - start)

    def _find(self, start: int, stop: int) -> _Span | None:
        """The prefetched span that contains a range."""
        place = bisect_right(self._starts, start) - 1
        return self._spans[place] if place >= 0 and stop <= self._spans[place].stop else None


class _Span:
    """A range in flight: one request, or several that fill one buffer."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        requests = -(-(stop - start) // _REQUEST_BYTES)
        step = -(-(stop - start) // requests)
        self._cuts = [*range(start, stop, step), stop]
        self._buffer = np.empty(stop - start, np.uint8) if requests > 1 else None
        self.futures: list[Future[Any]] = []

    def calls(self, read: ReadRange) -> list[Callable[[], Any]]:
        if self._buffer is None:
            return [partial(read, self.start, self.stop)]
        return [partial(self._fill, read, start, stop) for start, stop in pairwise(self._cuts)]

    def _fill(self, read: ReadRange, start: int, stop: int) -> None:
        assert self._buffer is not None, "only ranges of several requests have a buffer"
        self._buffer[start - self.start : stop - self.start] = np.frombuffer(read(start, stop), np.uint8)

    @cached_property
    def buffer(self) -> pa.Buffer:
        """The range's bytes; blocks until they have arrived."""
        results = [future.result() for future in self.futures]
        return pa.py_buffer(results[0] if self._buffer is None else self._buffer)

    def cancel(self) -> None:
        for future in self.futures:
            future.cancel()


def _start_requests(
    ranges: Sequence[tuple[int, int]], read: ReadRange, then: Callable[[], Any] | None
) -> tuple[list[_Span], Future[Any] | None]:
    """Start concurrent requests for ranges, in order, and call ``then`` when all have completed."""
    spans = [_Span(start, stop) for start, stop in ranges]
    calls = [span.calls(read) for span in spans]
    futures = call_ahead(
        [call for some in calls for call in some], _count_lanes(ranges), "windrow-ranges", then=then
    )
    remaining = iter(futures)
    for span, some in zip(spans, calls, strict=True):
        span.futures = list(islice(remaining, len(some)))
    return spans, next(remaining, None)


def _count_lanes(ranges: Sequence[tuple[int, int]]) -> int:
    """Number of concurrent requests: few large ones, or many small ones."""
    mean = sum(min(stop - start, _REQUEST_BYTES) for start, stop in ranges) // max(1, len(ranges))
    return max(_MIN_LANES, min(_MAX_LANES, _IN_FLIGHT_BYTES // max(1, mean)))


def join_ranges(ranges: Sequence[tuple[int, int]], size_bytes: int) -> list[tuple[int, int]]:
    """Sort the ranges that lie within a file of this size, and join those with small gaps between them.

    >>> join_ranges([(0, 10), (10, 20), (25, 30), (2**20, 2**20 + 5)], 2**21)
    [(0, 30), (1048576, 1048581)]
    """
    merged = _merge([span for span in ranges if 0 <= span[0] < span[1] <= size_bytes])
    gaps = sorted((after[0] - before[1], before[1]) for before, after in pairwise(merged))
    allowed = max(_GAP_BYTES, sum(stop - start for start, stop in merged) * _GAP_SHARE)
    filled = {}
    for size, start in gaps:
        allowed -= size
        if allowed < 0:
            break
        filled[start] = start + size
    joined: list[tuple[int, int]] = []
    for start, stop in merged:
        if joined and filled.get(joined[-1][1]) == start and stop - joined[-1][0] <= _REQUEST_BYTES:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _merge(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges and merge those that overlap."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
