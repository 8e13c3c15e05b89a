"""Handmade pages: valid or invalid content that none of the available writers produces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.io.chunks import BY_DICTIONARY, DATA, DICTIONARY, INDEX, PLAIN, needs_library, page, varint
from tests.io.parquet.decoding import decode_column
from windrow.core.buffer_pool import BufferPool
from windrow.core.frame_of_reference import Packing
from windrow.io.parquet.chunks import NUMBERS, Chunk

WHOLE = Packing(8, 0)


def decode_pages(
    *pages: bytes, rows: int, codec: str = "UNCOMPRESSED", packing: Packing = WHOLE
) -> list[int] | None:
    """The values of a chunk, or None if it is declined. Checks that nothing is written out of bounds."""
    stored, size = b"".join(pages), packing.bytes * rows
    guarded = np.full(size + 64, 0xAB, np.uint8)
    targets = np.arange(rows + 8, dtype=np.uint32)[:rows]
    chunk = Chunk(0, len(stored), rows, NUMBERS, 8, codec, optional=False)
    valid = decode_column(pa.BufferReader(stored), [chunk], packing, targets, guarded[:size], BufferPool(0))
    assert (guarded[size:] == 0xAB).all()
    if valid is None:
        return None
    more = (
        guarded[:size].view("i8" if packing == WHOLE else f"u{packing.bytes}")
        if size
        else np.zeros(rows, int)
    )
    return [packing.base + int(word) for word in more]


def words(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def literal(text: bytes) -> bytes:
    length = len(text) - 1
    return (bytes([length << 2]) if length < 60 else b"\xf8" + length.to_bytes(3, "little")) + text


def copy(offset_bytes: int, length: int, offset: int) -> bytes:
    if offset_bytes == 1:
        return bytes([(offset >> 8) << 5 | (length - 4) << 2 | 1, offset & 255])
    return bytes([(length - 1) << 2 | (2 if offset_bytes == 2 else 3)]) + offset.to_bytes(
        offset_bytes, "little"
    )


@needs_library
@given(
    st.sampled_from([1, 20, 2_000, 70_000]),
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4]),
            st.integers(1, 64),
            st.integers(1, 20) | st.integers(1, 80_000),
            st.binary(min_size=1, max_size=80),
        ),
        max_size=20,
    ),
)
@example(20, [(2, length, offset, b"-") for offset in range(1, 20) for length in range(1, 24)])
@example(70_000, [(4, 64, offset, b"-") for offset in (70_000, 65_536, 65_535, 2_048)])
def test_every_kind_of_snappy_copy(first: int, copies: list[tuple[int, int, int, bytes]]) -> None:
    raw = bytes(i * i % 251 for i in range(first))
    stored = literal(raw)
    for offset_bytes, asked_length, asked_offset, between in copies:
        length = 4 + asked_length % 8 if offset_bytes == 1 else asked_length
        offset = min(asked_offset, len(raw), {1: 2**11, 2: 2**16, 4: 2**32}[offset_bytes] - 1)
        stored += copy(offset_bytes, length, offset) + literal(between)
        raw += (raw[-offset:] * length)[:length] + between
    if len(raw) % 8:
        padding = bytes(-len(raw) % 8)
        raw, stored = raw + padding, stored + literal(padding)
    rows, body = len(raw) // 8, varint(len(raw)) + stored
    pages = page(DATA, rows, PLAIN, body, len(raw))
    assert decode_pages(pages, rows=rows, codec="SNAPPY") == np.frombuffer(raw, np.int64).tolist()


@needs_library
def test_truncated_snappy_is_declined() -> None:
    whole = varint(24) + literal(words(1, 2, 3))
    assert decode_pages(page(DATA, 3, PLAIN, whole, 24), bytes(16), rows=3, codec="SNAPPY") == [1, 2, 3]
    assert decode_pages(page(DATA, 3, PLAIN, whole[:-8], 24), bytes(16), rows=3, codec="SNAPPY") is None


def indices(*runs: bytes) -> bytes:
    return b"\2" + b"".join(runs)


def packed(*numbers: int) -> bytes:
    groups = -(-len(numbers) // 8)
    bits = sum(number << 2 * i for i, number in enumerate(numbers))
    return varint(groups << 1 | 1) + bits.to_bytes(2 * groups, "little")


def repeated(number: int, count: int) -> bytes:
    return varint(count << 1) + bytes([number])


# a dictionary of three values, and a packing that fits them; equal values need 0 bytes
LOOKED_UP = [
    *[((10, 20, 30), packing) for packing in (WHOLE, Packing(4, -1), Packing(2, 10), Packing(1, 7))],
    ((10, 10, 10), Packing(0, 10)),
]
looked_up = pytest.mark.parametrize(("three", "packing"), LOOKED_UP)


@needs_library
@looked_up
def test_padding_of_the_last_group_is_optional_but_values_are_not(
    three: tuple[int, int, int], packing: Packing
) -> None:
    dictionary = page(DICTIONARY, 3, PLAIN, words(*three))
    body = indices(packed(0, 1, 2, 0, 1, 2, 0, 1, 2))
    expected = [*three] * 3
    for cut, found in ((0, expected), (1, expected), (2, None)):
        data = page(DATA, 9, BY_DICTIONARY, body[: len(body) - cut])
        assert decode_pages(dictionary, data, rows=9, packing=packing) == found


@needs_library
@looked_up
@pytest.mark.parametrize("groups", [3, 4, 2**20])
def test_run_that_claims_missing_groups_is_declined(
    groups: int, three: tuple[int, int, int], packing: Packing
) -> None:
    dictionary = page(DICTIONARY, 3, PLAIN, words(*three))
    body = indices(packed(0, 1, 2, 0, 1, 2, 0, 1, 2))
    claimed = body.replace(varint(2 << 1 | 1), varint(groups << 1 | 1))
    assert claimed != body
    assert decode_pages(dictionary, page(DATA, 9, BY_DICTIONARY, claimed), rows=9, packing=packing) is None


@needs_library
@looked_up
@pytest.mark.parametrize("run", [packed, lambda number: repeated(number, 1)])
def test_index_beyond_the_dictionary_is_declined(
    run: Any, three: tuple[int, int, int], packing: Packing
) -> None:
    dictionary = page(DICTIONARY, 3, PLAIN, words(*three))
    for last, found in ((2, [three[1], three[1], three[2]]), (3, None)):
        data = page(DATA, 3, BY_DICTIONARY, indices(repeated(1, 2), run(last)))
        assert decode_pages(dictionary, data, rows=3, packing=packing) == found


@needs_library
@pytest.mark.parametrize(
    "packing", [Packing(4, 11), Packing(2, -(2**16) + 29), Packing(1, 5), Packing(0, 10)]
)
@pytest.mark.parametrize("stored", [[10, 20, 30], [30, 20, 261, 10]])
def test_overflowing_values_are_declined(stored: list[int], packing: Packing) -> None:
    """Values below or above the range, dictionary encoded or plain."""
    found = stored if packing == Packing(1, 5) and 261 not in stored else None
    plain = page(DATA, len(stored), PLAIN, words(*stored))
    assert decode_pages(plain, rows=len(stored)) == stored
    assert decode_pages(plain, rows=len(stored), packing=packing) == found
    data = page(DATA, len(stored), BY_DICTIONARY, indices(packed(*range(len(stored)))))
    dictionary = page(DICTIONARY, len(stored), PLAIN, words(*stored))
    assert decode_pages(dictionary, data, rows=len(stored)) == stored
    assert decode_pages(dictionary, data, rows=len(stored), packing=packing) == found


@needs_library
def test_more_values_than_rows_are_declined() -> None:
    pages = [page(DATA, 2, PLAIN, words(1, 2)), page(DATA, 2, PLAIN, words(3, 4))]
    assert decode_pages(*pages, rows=4) == [1, 2, 3, 4]
    assert decode_pages(*pages, rows=3) is None


@needs_library
def test_index_pages_are_skipped() -> None:
    pages = [
        page(DATA, 1, PLAIN, words(1)),
        page(INDEX, 0, PLAIN, b"something"),
        page(DATA, 1, PLAIN, words(2)),
    ]
    assert decode_pages(*pages, rows=2) == [1, 2]
