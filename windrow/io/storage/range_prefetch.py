"""Prefetch of byte ranges of a remote file: joins and splits them into efficient, concurrent requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.io.storage.io_threads import call_ahead

__all__ = ["ReadRange", "Span", "join_ranges", "start_requests"]

ReadRange = Callable[[int, int], Any]

# Larger requests are not faster, and delay those behind them.
_REQUEST_BYTES = 16 * 2**20
# In flight per file: saturates the network with large requests, and hides latency with small ones.
_IN_FLIGHT_BYTES = 128 * 2**20
_MIN_LANES, _MAX_LANES = 8, 32
# Gaps between ranges are read too where separate requests would cost more: up to
# the larger of these bytes in total and this share of the requested bytes.
_GAP_BYTES, _GAP_SHARE = 64 * 1024, 1 / 32


class Span:
    """A range in flight: one request, or several that fill one buffer."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        requests = -(-(stop - start) // _REQUEST_BYTES)
        step = -(-(stop - start) // requests)
        self._cuts = [*range(start, stop, step), stop]
        self._buffer = np.empty(stop - start, np.uint8) if requests > 1 else None
        self.futures: list[Future[Any]] = []

    def calls(self, read: ReadRange) -> list[Callable[[], Any]]:
        """The requests."""
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
        """Cancel the requests that have not started."""
        for future in self.futures:
            future.cancel()


def start_requests(
    ranges: Sequence[tuple[int, int]], read: ReadRange, then: Callable[[], Any] | None
) -> tuple[list[Span], Future[Any] | None]:
    """Start concurrent requests for ranges, in order, and call ``then`` when all have completed.

    Returns
    -------
    spans, after
        The ranges in flight, and the future of ``then``.
    """
    spans = [Span(start, stop) for start, stop in ranges]
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

    Examples
    --------
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
