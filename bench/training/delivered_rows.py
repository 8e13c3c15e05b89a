"""The rows that arrived: each exactly once, by key or content, and in how random an order.

Keys are only recorded while an epoch runs and compared afterwards, so that the check adds only a few milliseconds to
the measured time and gives no system a pause. Without a key, rows of lists of integers or of strings have fingerprints,
made of the length of the value and of its first and last eight bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from windrow.pipeline.quality.measures import count_distinct, expect_distinct

_WORD_BYTES = 8


@dataclass(frozen=True)
class Verdict:
    """The delivered rows of one epoch, compared with those of the files.

    ``allowed`` rows may be missing: equal shards of n trainers drop up to n - 1.
    """

    method: str
    missing: int
    repeated: int
    allowed: int = 0

    @property
    def good(self) -> bool:
        """Whether every row arrived exactly once, except those that equal shards drop."""
        return self.missing <= self.allowed and self.repeated == 0

    def __str__(self) -> str:
        if self.good:
            return f"yes ({self.method}{f', {self.missing} left out' if self.missing else ''})"
        return f"NO: {self.missing} missing, {self.repeated} too many"


class KeyLog:
    """The keys or fingerprints that one trainer received in each epoch, in order of arrival."""

    def __init__(self, dtype: type[np.integer[Any]], capacity: int, epochs: int) -> None:
        # ones instead of empty, so that the pages are touched before the idle memory is measured
        self._keys = np.ones((epochs, capacity), dtype=dtype)
        self._counts: list[int] = []

    def open_epoch(self) -> None:
        self._counts.append(0)

    def add(self, keys: NDArray[np.generic]) -> None:
        epoch, start = len(self._counts) - 1, self._counts[-1]
        stop = start + len(keys)
        if epoch >= len(self._keys):
            self._keys = np.concatenate([self._keys, np.zeros_like(self._keys[:1])])
        if stop > self._keys.shape[1]:
            more = np.zeros((len(self._keys), stop), dtype=self._keys.dtype)
            self._keys = np.concatenate([self._keys, more], axis=1)
        np.copyto(self._keys[epoch, start:stop], keys, casting="unsafe")
        self._counts[-1] = stop

    def epochs(self) -> list[NDArray[np.generic]]:
        return [self._keys[epoch, :count] for epoch, count in enumerate(self._counts)]


def check_keys(
    trainers: Sequence[NDArray[np.generic]], rows: int, allowed: int = 0, method: str = "key"
) -> Verdict:
    """Compare one epoch's keys, over all trainers, with 0 .. rows - 1."""
    keys = np.concatenate([np.asarray(part, dtype=np.int64) for part in trainers])
    inside = keys[(keys >= 0) & (keys < rows)]
    counts = np.bincount(inside, minlength=rows)
    missing = int((counts == 0).sum())
    return Verdict(method, missing, len(keys) - (rows - missing), allowed)


def check_count(delivered: int, rows: int, allowed: int = 0) -> Verdict:
    return Verdict("row count", max(0, rows - delivered), max(0, delivered - rows), allowed)


Fingerprints = NDArray[np.uint64]

# odd, with bits all over: multiplication keeps words apart
_FIRST, _LAST, _LENGTH = (
    np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)


def count_rows(column: Any) -> int:
    """The rows of one batch's column, in any form that has fingerprints."""
    return len(column[1]) - 1 if isinstance(column, tuple) else len(column)


def fingerprint_rows(column: Any) -> Fingerprints:
    """The fingerprints of one batch's column, in the form that a library delivers it in.

    That is an Arrow column, a pair of values and offsets, or a sequence of strings, arrays or tensors.
    The width of the integers does not matter.
    """
    if isinstance(column, pa.ChunkedArray):
        parts = [_fingerprint_array(chunk) for chunk in column.chunks]
        return np.concatenate([np.empty(0, np.uint64), *parts])
    if isinstance(column, pa.Array):
        return _fingerprint_array(column)
    if isinstance(column, tuple):
        return _fingerprint_lists(column[0].numpy(), column[1].numpy())
    if len(column) and isinstance(column[0], str):
        return _fingerprint_array(pa.array(column, pa.large_string()))
    return _fingerprint_rows(column)


def read_fingerprints(paths: Sequence[str], column: str) -> Fingerprints:
    return np.concatenate([fingerprint_rows(pq.read_table(path, columns=[column])[column]) for path in paths])


def find_rows(trainers: Sequence[Fingerprints], stored: Fingerprints) -> list[NDArray[np.int64]]:
    """The stored rows that the trainers received in one epoch; -1 for a fingerprint that is not stored.

    Rows with the same fingerprint are told apart by their occurrence only: the second that arrives is the second
    that is stored. One that arrives more often than it is stored is its last row again.
    """
    by_value = np.argsort(stored, kind="stable")
    arrived = np.concatenate([np.empty(0, np.uint64), *trainers])
    by_arrival = np.argsort(arrived, kind="stable")
    values, known = arrived[by_arrival], stored[by_value]
    first, stop = (np.searchsorted(known, values, side) for side in ("left", "right"))
    occurrence = np.arange(len(values)) - np.searchsorted(values, values, "left")
    rows = np.empty(len(values), np.int64)
    at = np.minimum(first + occurrence, stop - 1)
    rows[by_arrival] = np.where(stop > first, by_value[at], -1)
    return np.split(rows, np.cumsum([len(part) for part in trainers])[:-1])


def _fingerprint_array(array: pa.Array) -> Fingerprints:
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _fingerprint_lists(array.values.to_numpy(), array.offsets.to_numpy())
    wide = pa.types.is_large_string(array.type)
    if not (wide or pa.types.is_string(array.type)):
        raise TypeError(
            f"a column of type {array.type} has no fingerprints: only lists of integers and strings have"
        )
    _, offsets, content = array.buffers()
    places = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset :][: len(array) + 1]
    return _fingerprint(np.frombuffer(content or b"", np.uint8), places.astype(np.int64))


def _fingerprint_rows(rows: Sequence[Any]) -> Fingerprints:
    """Of arrays or tensors, one a row."""
    lengths = [len(row) for row in rows]
    if rows and hasattr(rows[0], "untyped_storage"):
        import torch

        return _fingerprint_lists(torch.cat(list(rows)).numpy(), np.cumsum([0, *lengths]))
    return _fingerprint_lists(np.concatenate([np.empty(0, np.int32), *rows]), np.cumsum([0, *lengths]))


def _fingerprint_lists(values: NDArray[Any], offsets: NDArray[Any]) -> Fingerprints:
    words = np.ascontiguousarray(values, np.int32)
    return _fingerprint(words.view(np.uint8), offsets.astype(np.int64) * words.itemsize)


def _fingerprint(content: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Fingerprints:
    starts, stops = offsets[:-1], offsets[1:]
    lengths = stops - starts
    if len(content) < _WORD_BYTES:
        content = np.concatenate([content, np.zeros(_WORD_BYTES, np.uint8)])
    # a word at every byte: a view, not a copy
    words = np.ndarray((len(content) - _WORD_BYTES + 1,), np.uint64, content, strides=(1,))
    last_word = len(words) - 1
    first = words[np.minimum(starts, last_word)]
    last = words[np.clip(stops - _WORD_BYTES, 0, last_word)]
    for row in np.flatnonzero(lengths < _WORD_BYTES):
        first[row] = last[row] = int.from_bytes(content[starts[row] : stops[row]].tobytes(), "little")
    prints: Fingerprints = first * _FIRST + last * _LAST + lengths.astype(np.uint64) * _LENGTH
    return prints


@dataclass(frozen=True)
class Randomness:
    """Measures of an order; a uniform order has about 1, the expected row groups, and 0.

    The distance is that in storage of rows delivered next to each other, relative to uniform orders; kept are
    the rows that are delivered next to one of their neighbours in storage.
    """

    neighbour_distance: float
    groups_a_batch: float
    groups_expected: float
    neighbours_kept: float


def find_worst(orders: Sequence[Randomness]) -> Randomness | None:
    """The worst of several epochs by each measure."""
    if not orders:
        return None
    return Randomness(
        min(order.neighbour_distance for order in orders),
        min(order.groups_a_batch for order in orders),
        orders[0].groups_expected,
        max(order.neighbours_kept for order in orders),
    )


def measure_randomness(
    keys: Sequence[NDArray[np.generic]], rows: int, *, batch_size: int, row_groups: int
) -> Randomness:
    """Measure the order of one epoch, with row groups of equal sizes: the mean over the trainers' rows."""
    sizes = np.diff(np.arange(row_groups + 1) * rows // row_groups)
    expected = expect_distinct(sizes, min(batch_size, rows))
    parts = [np.asarray(part, dtype=np.int64) for part in keys if len(part) > 2]
    if not parts:
        return Randomness(0.0, 0.0, expected, 0.0)
    weights = [len(part) for part in parts]
    steps = [np.abs(np.diff(part)) for part in parts]

    def average(measured: Sequence[float]) -> float:
        return float(np.average(measured, weights=weights))

    return Randomness(
        average([float(step.mean()) / (rows / 3) for step in steps]),
        average([_count_groups(part * row_groups // rows, batch_size) for part in parts]),
        expected,
        average([float((step == 1).mean()) for step in steps]),
    )


def _count_groups(groups: NDArray[np.int64], batch_size: int) -> float:
    """Mean number of distinct row groups per full batch, or over all rows if no batch is full."""
    size = min(batch_size, len(groups))
    batches = groups[: len(groups) // size * size].reshape(-1, size)
    return float(count_distinct(batches).mean())
