"""Fingerprints of rows by the content of a column, for data without a key.

The column holds lists of integers or strings. A fingerprint is made of the length of the value and of its first and
last eight bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

__all__ = ["count_rows", "find_rows", "fingerprint_rows", "read_fingerprints"]

Fingerprints = NDArray[np.uint64]

_WORD_BYTES = 8
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
    """The fingerprints of all rows of Parquet files, in stored order."""
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
