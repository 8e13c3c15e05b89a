"""Verification of exactly-once delivery: by key if there is one, by content if there are no numbers, or by sums.

Keys are only recorded while an epoch runs and compared afterwards, so that the
check adds only a few milliseconds to the measured time and gives no system a pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "KeyLog",
    "SumLog",
    "Sums",
    "Verdict",
    "add_sums",
    "check_count",
    "check_keys",
    "check_sums",
    "sum_column",
]

Sums = Mapping[str, tuple[int, int, int]]
"""For each column: count, sum and sum of squares of its values, modulo 2**64."""


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
        """Begin the next epoch."""
        self._counts.append(0)

    def add(self, keys: NDArray[np.generic]) -> None:
        """Record the keys of one batch."""
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
        """The keys of each epoch."""
        return [self._keys[epoch, :count] for epoch, count in enumerate(self._counts)]


class SumLog:
    """Sums of the integer columns that one trainer received in each epoch."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._epochs: list[dict[str, tuple[int, int, int]]] = []

    def open_epoch(self) -> None:
        """Begin the next epoch."""
        self._epochs.append(dict.fromkeys(self._columns, (0, 0, 0)))

    def add(self, batch: Mapping[str, NDArray[np.generic]]) -> None:
        """Add the columns of one batch."""
        sums = self._epochs[-1]
        for name in self._columns:
            sums[name] = add_sums(sums[name], sum_column(batch[name]))

    def epochs(self) -> list[Sums]:
        """The sums of each epoch."""
        return list(self._epochs)


def sum_column(values: NDArray[np.generic]) -> tuple[int, int, int]:
    """Count, sum and sum of squares of integers, modulo 2**64: independent of the order."""
    words = values.astype(np.int64, copy=False).view(np.uint64)
    return len(words), int(words.sum()), int(np.dot(words, words))


def add_sums(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    """Combine the sums of two disjoint sets of rows."""
    return one[0] + other[0], (one[1] + other[1]) % 2**64, (one[2] + other[2]) % 2**64


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
    """Compare the number of an epoch's rows with that of the files."""
    return Verdict("row count", max(0, rows - delivered), max(0, delivered - rows), allowed)


def check_sums(trainers: Sequence[Sums], expected: Sums, rows: int, allowed: int = 0) -> Verdict:
    """Compare one epoch's sums, over all trainers, with those of the files."""
    names = set(expected).intersection(*trainers) if trainers else set()
    if not names:
        return Verdict("nothing to compare", rows, 0)
    missing = repeated = 0
    for name in names:
        total = (0, 0, 0)
        for part in trainers:
            total = add_sums(total, part[name])
        if total != tuple(expected[name]):
            difference = total[0] - rows
            missing = max(missing, -difference, int(difference == 0))
            repeated = max(repeated, difference, int(difference == 0))
    return Verdict("row count" if missing else "sums", missing, repeated, allowed)
