"""A hash of values, defined here, so that it is the same in every version, on every platform and in every process.

Each value becomes 64-bit words, and words are mixed with the finalizer of splitmix64:
integers and booleans are one word; floats the bits of their double, with one zero and one NaN; dates and times
are seconds and nanoseconds, so that units do not matter; text and bytes are their 8-byte little-endian words,
the last one padded with zeros, and their length. Text of more than 1 KiB is first replaced by its SHA-256. Decimals
are hashed as text. A null has a hash of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import PlanError

Words = NDArray[np.uint64]

_NULL = np.uint64(0x6E756C6C6E756C6C)
_START = np.uint64(0x77696E64726F7731)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_LONG_BYTES = 1024
_SECONDS_PER_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _can_hash(kind: pa.DataType) -> bool:
    """Whether values of a type have a hash."""
    if pt.is_dictionary(kind):
        return _can_hash(kind.value_type)
    return (
        pt.is_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_floating(kind)
        or pt.is_null(kind)
        or pt.is_decimal(kind)
        or (pt.is_temporal(kind) and not pt.is_interval(kind))
        or _is_bytes(kind)
    )


def hash_values(column: pa.ChunkedArray) -> Words:
    """(rows,) 64-bit hashes of a column.

    >>> [f"{word:016x}" for word in hash_values(pa.chunked_array([[1, None]], pa.int32())).tolist()]
    ['6eeecb98ec702be0', '8cb2369a629251c8']
    """
    if not column.num_chunks:
        return np.empty(0, np.uint64)
    return np.concatenate([_hash_array(chunk) for chunk in column.chunks])


def hash_rows(columns: Sequence[pa.ChunkedArray]) -> Words:
    """(rows,) 64-bit hashes of the values of one or more columns together; their order counts.

    >>> column = pa.chunked_array([[1, None]], pa.int32())
    >>> [f"{word:016x}" for word in hash_rows([column, column]).tolist()]
    ['92140842d61f18ca', 'c8cd0f2209ddf61b']
    """
    hashes = hash_values(columns[0])
    for place, column in enumerate(columns[1:], 1):
        # with a key, or equal values of two columns would cancel out
        keyed = mix_key(hashes, place)
        with np.errstate(over="ignore"):
            hashes = _add(keyed, hash_values(column))
    return hashes


def mix_key(hashes: Words, key: int) -> Words:
    """(rows,) other hashes of the same values, one for each 64-bit key."""
    with np.errstate(over="ignore"):
        return _add(hashes, np.full(len(hashes), key, np.uint64))


def _hash_array(array: pa.Array) -> Words:
    kind = array.type
    if pt.is_dictionary(kind):
        return _hash_array(array.dictionary_decode())
    if pt.is_null(kind):
        return np.full(len(array), mix_words(np.array([_NULL]))[0])
    with np.errstate(over="ignore"):
        hashes = _hash_bytes(array) if _is_bytes(kind) or pt.is_decimal(kind) else _hash_words(array)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = mix_words(np.array([_NULL]))[0]
    return hashes


def mix_words(words: Words) -> Words:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _add(hashes: Words, words: Words) -> Words:
    return mix_words((hashes ^ words) + _STEP)


def _hash_words(array: pa.Array) -> Words:
    hashes = np.full(len(array), _START)
    for words in _words_of(array):
        hashes = _add(hashes, words)
    return hashes


def _words_of(array: pa.Array) -> list[Words]:
    kind = array.type
    if pt.is_boolean(kind):
        return [array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)]
    if pt.is_floating(kind):
        floats = array.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
        floats[np.isnan(floats)] = np.nan
        return [floats.view(np.uint64)]
    if pt.is_integer(kind):
        integers = array.fill_null(0).to_numpy()
        signed = integers.astype(np.int64) if pt.is_signed_integer(kind) else integers
        return [signed.astype(np.uint64)]
    if pt.is_date32(kind):
        seconds = array.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64) * _SECONDS_PER_DAY
        return [seconds.view(np.uint64), np.zeros(len(array), np.uint64)]
    unit = "ms" if pt.is_date64(kind) else kind.unit
    storage = pa.int32() if kind.bit_width == 32 else pa.int64()
    counts = array.view(storage).fill_null(0).to_numpy().astype(np.int64)
    seconds, rest = np.divmod(counts, _PER_SECOND[unit])
    return [seconds.view(np.uint64), (rest * (10**9 // _PER_SECOND[unit])).view(np.uint64)]


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
        or pt.is_string_view(kind)
        or pt.is_binary_view(kind)
    )


def _hash_bytes(array: pa.Array) -> Words:
    if pt.is_decimal(array.type):
        array = array.cast(pa.string())
    array = array.cast(pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = np.full(len(array), _START)
    content = array.buffers()[2]
    if content is not None and content.size:
        # a word at any byte, also at the last one
        padded = np.concatenate([np.frombuffer(content, np.uint8), np.zeros(8, np.uint8)])
        words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        rows = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
        for at in range(0, int(lengths[rows].max(initial=0)), 8):
            rows = rows[lengths[rows] > at]
            left = np.minimum(lengths[rows] - at, 8).astype(np.uint64)
            mask = np.uint64(2**64 - 1) >> ((np.uint64(8) - left) * np.uint64(8))
            hashes[rows] = _add(hashes[rows], words[starts[rows] + at].astype(np.uint64) & mask)
        for row in np.flatnonzero(lengths > _LONG_BYTES).tolist():
            text = memoryview(content)[starts[row] : starts[row] + lengths[row]]
            digest = np.frombuffer(hashlib.sha256(text).digest(), "<u8").astype(np.uint64)
            for word in digest:
                hashes[row : row + 1] = _add(hashes[row : row + 1], word)
    return _add(hashes, lengths.astype(np.uint64))


def check_hashable(kind: pa.DataType, name: str, call: str) -> None:
    """Raise a PlanError unless the values of a column have a hash."""
    if not _can_hash(kind):
        raise PlanError(
            f"{call}: column {name!r} is {kind}, which has no hash: use map_batches() to make a column of numbers, "
            "text, bytes, decimals, booleans or times of it"
        )
