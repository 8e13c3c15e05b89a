"""Handmade pages with nulls, differences, split bytes, booleans, decimals and codecs, valid and invalid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.core.pools import GuardedPool
from tests.io.chunks import (
    BIT_RUNS,
    BY_DICTIONARY,
    DATA,
    DELTA,
    DICTIONARY,
    PLAIN,
    SPLIT,
    lay_out,
    needs_library,
    page,
    page_v2,
    run_of,
    runs,
    sized,
    varint,
    words,
)
from tests.io.parquet.decoding import decode_column
from windrow.core.frame_of_reference import Packing
from windrow.io.parquet.chunks import BOOLEANS, DECIMALS, NUMBERS, Chunk
from windrow.io.parquet.decoder_library import CODECS, SCRATCH

pytestmark = needs_library
NUMBER = Chunk(0, 0, 0, NUMBERS, 8, "UNCOMPRESSED", optional=True, has_nulls=True)
WIDTHS = {NUMBERS: 8, BOOLEANS: 1, DECIMALS: 16}


def decode_chunks(*chunks: tuple[Chunk, bytes], packing: Packing | None = None) -> list[int | None] | None:
    """The values of chunks, None for nulls; None if one is declined. Checks that nothing is written out of bounds."""
    found, content = lay_out(chunks)
    rows = sum(chunk.rows for chunk in found)
    how = packing or Packing(WIDTHS[found[0].kind], 0)
    targets, pool = np.arange(rows, dtype=np.uint32)[::-1].copy(), GuardedPool()
    out = pool.take(how.bytes * rows)
    valid = decode_column(pa.BufferReader(content), found, how, targets, out, pool)
    pool.assert_guarded()
    if valid is None:
        return None
    each = [int.from_bytes(out[at * how.bytes :][: how.bytes].tobytes(), "little") for at in range(rows)]
    # nulls are zeros, whatever the memory held before
    assert not any(value for value, is_value in zip(each, valid, strict=True) if not is_value)
    values = [
        (value + how.base if is_value else None) for value, is_value in zip(each, valid.tolist(), strict=True)
    ]
    return values[::-1]


def decode_rows(rows: int, *pages: bytes, chunk: Chunk = NUMBER, **options: Any) -> list[int | None] | None:
    return decode_chunks((chunk._replace(rows=rows), b"".join(pages)), **options)


# --- levels


@pytest.mark.parametrize("levels", [runs(1, 1, 0, 1), run_of(1, 1) + run_of(0, 1) + run_of(1, 1), runs(1, 5)])
@pytest.mark.parametrize("packing", [None, Packing(1, 5), Packing(2, -1)])
def test_nulls_are_where_levels_are_0(levels: bytes, packing: Packing | None) -> None:
    assert decode_rows(3, page(DATA, 3, PLAIN, sized(levels) + words(7, 8)), packing=packing) == [7, None, 8]
    second = page_v2(3, 1, 3, b"", levels, words(7, 8))
    assert decode_rows(3, second, packing=packing) == [7, None, 8]


@pytest.mark.parametrize(
    "levels",
    [
        b"",
        run_of(2, 1) + run_of(1, 2),
        run_of(0, 1) + run_of(255, 2),
        run_of(1, 1) + run_of(0, 1),
        run_of(0, 0) + runs(1, 1, 0, 1),
        runs(1, 1, 0, 1)[:1],
        b"\xff" * 10,
    ],
    ids=["none", "2", "255", "too few", "an empty run", "bits are missing", "endless"],
)
def test_wrong_levels_are_declined(levels: bytes) -> None:
    assert decode_rows(3, page(DATA, 3, PLAIN, sized(levels) + words(7, 8))) is None
    assert decode_rows(3, page_v2(3, 1, 3, b"", levels, words(7, 8))) is None


def test_levels_beyond_the_page_are_declined() -> None:
    levels = runs(1, 1, 0, 1)
    for length in (3, 18, 19, 2**32 - 1):
        content = length.to_bytes(4, "little") + levels + words(7, 8)
        assert decode_rows(3, page(DATA, 3, PLAIN, content) + bytes(16)) is None
    assert decode_rows(3, page(DATA, 3, PLAIN, b"\1\0\0") + bytes(16)) is None
    for wrong in ({"def_bytes": 19}, {"def_bytes": 2**31 - 1}, {"rep_bytes": 1}, {"def_bytes": 1}):
        assert decode_rows(3, page_v2(3, 1, 3, b"", levels, words(7, 8), **wrong) + bytes(16)) is None


def test_missing_values_are_declined() -> None:
    levels = runs(1, 1, 0, 1)
    assert decode_rows(3, page(DATA, 3, PLAIN, sized(levels) + words(7, 8)[:-1])) is None


@pytest.mark.parametrize(("nulls", "rows"), [(0, 3), (2, 3), (1, 2), (1, 4)])
def test_second_version_must_state_true_counts(nulls: int, rows: int) -> None:
    assert decode_rows(3, page_v2(3, nulls, rows, b"", runs(1, 1, 0, 1), words(7, 8))) is None


def test_nulls_that_the_footer_denies_are_declined() -> None:
    stored = page(DATA, 3, PLAIN, sized(runs(1, 1, 0, 1)) + words(7, 8))
    assert decode_rows(3, stored, chunk=NUMBER._replace(has_nulls=False)) is None
    full = page(DATA, 3, PLAIN, sized(run_of(1, 3)) + words(7, 8, 9))
    assert decode_rows(3, full, chunk=NUMBER._replace(has_nulls=False)) == [7, 8, 9]


@pytest.mark.parametrize("first", [0, 1])
def test_nulls_of_one_chunk_that_the_footer_denies(first: int) -> None:
    """The other chunk has fewer rows and states nulls: the memory for targets must suffice for both."""
    few = page(DATA, 1, PLAIN, sized(run_of(0, 1)))
    many = page(DATA, 90, PLAIN, sized(run_of(0, 80) + run_of(1, 10)) + words(*range(10)))
    chunks = [
        (NUMBER._replace(rows=1), few),
        (NUMBER._replace(rows=90, has_nulls=False), many),
    ]
    expected = [[None], [None] * 80 + [*range(10)]]
    found = decode_chunks(*(chunks if first == 0 else chunks[::-1]))
    assert found == [value for part in (expected if first == 0 else expected[::-1]) for value in part]


def test_nulls_in_several_pages_and_of_a_dictionary() -> None:
    dictionary = page(DICTIONARY, 2, PLAIN, words(10, 20))
    pages = [
        page(DATA, 2, BY_DICTIONARY, sized(run_of(0, 2))),
        page(DATA, 3, BY_DICTIONARY, sized(runs(1, 1, 0, 1)) + b"\1" + runs(1, 1, 0)),
        page(DATA, 2, PLAIN, sized(run_of(1, 2)) + words(30, 31)),
    ]
    assert decode_rows(7, dictionary, *pages) == [None, None, 20, None, 10, 30, 31]
    assert decode_rows(6, dictionary, *pages) is None


# --- encodings


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def differences(least: int, width: int, *more: int, **header: int) -> bytes:
    """Numbers that begin with 100; each is the one before it, plus ``least``, plus one of ``more``."""
    stated = {"block": 128, "parts": 4, "values": len(more) + 1} | header
    bits = sum(number << width * at for at, number in enumerate(more))
    head = b"".join(varint(stated[name]) for name in ("block", "parts", "values")) + zigzag(100)
    return head + zigzag(least) + bytes([width, 0, 0, 0]) + bits.to_bytes(4 * width, "little")


REQUIRED = NUMBER._replace(optional=False, has_nulls=False)


@pytest.mark.parametrize("width", [3, 7, 31, 33, 57, 63, 64])
@pytest.mark.parametrize("least", [0, -9, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("wide", [8, 4])
def test_differences_of_any_width_wrap_around(width: int, least: int, wide: int) -> None:
    more = [(1 << width) - 1 - at for at in range(3)]
    body, bits = differences(least, width, *more), 8 * wide
    expected = [100]
    for number in more:
        expected.append((expected[-1] + least + number) % (1 << bits))
    chunk = REQUIRED._replace(width=wide)
    found = decode_rows(4, page(DATA, 4, DELTA, body), chunk=chunk, packing=Packing(wide, 0))
    assert found == (expected if width <= bits else None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": 3},
        {"values": 5},
        {"values": 2**63},
        {"block": 0},
        {"block": 64},
        {"block": 192},
        {"block": 2**62},
        {"parts": 0},
        {"parts": 3},
        {"parts": 8},
        {"parts": 128, "block": 128 * 32},
        {"parts": 1, "block": 512},
    ],
    ids=str,
)
def test_header_of_differences_that_lies_is_declined(wrong: dict[str, int]) -> None:
    body = differences(0, 3, 1, 2, 3, **wrong)
    assert decode_rows(4, page(DATA, 4, DELTA, differences(0, 3, 1, 2, 3)), chunk=REQUIRED) is not None
    assert decode_rows(4, page(DATA, 4, DELTA, body) + bytes(600), chunk=REQUIRED) is None


def test_truncated_differences_are_declined() -> None:
    body = differences(0, 9, *range(31))
    assert decode_rows(32, page(DATA, 32, DELTA, body), chunk=REQUIRED) is not None
    for length in range(len(body)):
        assert decode_rows(32, page(DATA, 32, DELTA, body[:length]) + bytes(64), chunk=REQUIRED) is None


def test_more_differences_than_fit_into_one_block() -> None:
    body = varint(128) + varint(4) + varint(1 + 3 * 128) + zigzag(0)
    for least in (1, 2, -3):
        body += zigzag(least) + bytes(4)
    expected = [*range(129), *range(130, 386, 2), *range(381, -1, -3)]
    assert decode_rows(385, page(DATA, 385, DELTA, body), chunk=REQUIRED, packing=Packing(8, 0)) == expected


def test_split_bytes_must_be_those_of_all_values() -> None:
    numbers = [1, 2**40, 7, 258, 9, 2**63 - 1, 0, 5, 6, 3]
    content = np.array(numbers, np.int64).view(np.uint8).reshape(-1, 8).T.tobytes()
    assert decode_rows(10, page(DATA, 10, SPLIT, content), chunk=REQUIRED) == numbers
    for wrong in (content[:-1], content + b"\0", content + bytes(8), content[:-8]):
        assert decode_rows(10, page(DATA, 10, SPLIT, wrong) + bytes(64), chunk=REQUIRED) is None


BOOLEAN = REQUIRED._replace(kind=BOOLEANS, width=0)


def test_booleans_beyond_the_page_are_declined() -> None:
    for encoding, body in ((PLAIN, b"\2\1"), (BIT_RUNS, sized(runs(1, *[0, 1, 0, 0, 0, 0, 0, 0, 1])))):
        assert decode_rows(9, page(DATA, 9, encoding, body), chunk=BOOLEAN) == [0, 1, 0, 0, 0, 0, 0, 0, 1]
        for length in range(len(body)):
            # the last byte of bits is needed, since it holds a value
            assert decode_rows(9, page(DATA, 9, encoding, body[:length]) + bytes(64), chunk=BOOLEAN) is None


@pytest.mark.parametrize("body", [sized(run_of(2, 3)), b"\xff\xff\xff\xff" + run_of(1, 3), sized(b"")])
def test_wrong_runs_of_booleans_are_declined(body: bytes) -> None:
    assert decode_rows(3, page(DATA, 3, BIT_RUNS, sized(run_of(1, 3))), chunk=BOOLEAN) == [1, 1, 1]
    assert decode_rows(3, page(DATA, 3, BIT_RUNS, body) + bytes(64), chunk=BOOLEAN) is None
    for encoding in (BY_DICTIONARY, DELTA, SPLIT):
        assert decode_rows(3, page(DATA, 3, encoding, sized(run_of(1, 3))), chunk=BOOLEAN) is None


@pytest.mark.parametrize("width", range(1, 18))
def test_decimals_of_every_width(width: int) -> None:
    top = 1 << (8 * width - 1)
    numbers = [0, -1, 1, top - 1, -top, 0x0102030405060708090A0B0C0D0E0F10 % top]
    body = b"".join(number.to_bytes(width, "big", signed=True) for number in numbers)
    chunk = REQUIRED._replace(kind=DECIMALS, width=width)
    expected = [number % (1 << 128) for number in numbers] if width <= 16 else None
    assert decode_rows(6, page(DATA, 6, PLAIN, body), chunk=chunk) == expected
    by_dictionary = [
        page(DICTIONARY, 6, PLAIN, body),
        page(DATA, 6, BY_DICTIONARY, b"\3" + runs(3, *range(6))),
    ]
    assert decode_rows(6, *by_dictionary, chunk=chunk) == expected
    assert decode_rows(6, page(DATA, 6, PLAIN, body[:-1]) + bytes(64), chunk=chunk) is None
    assert decode_rows(6, page(DICTIONARY, 6, PLAIN, body[:-1]), by_dictionary[1], chunk=chunk) is None
    for encoding in (BIT_RUNS, DELTA, SPLIT):
        assert decode_rows(6, page(DATA, 6, encoding, body), chunk=chunk) is None


# --- codecs


@pytest.mark.parametrize(("codec", "name"), [("ZSTD", "zstd"), ("LZ4", "lz4_raw"), ("SNAPPY", "snappy")])
def test_compressed_pages_that_lie_are_declined(codec: str, name: str) -> None:
    if codec not in CODECS:
        pytest.skip("the library of the codec is not installed")
    raw = words(*range(50))
    body, chunk = pa.compress(raw, name, asbytes=True), REQUIRED._replace(codec=codec)
    assert decode_rows(50, page(DATA, 50, PLAIN, body, len(raw)), chunk=chunk) == [*range(50)]
    if codec != "SNAPPY":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SCRATCH.codecs, "addresses", np.zeros(3, np.int64))
            assert decode_rows(50, page(DATA, 50, PLAIN, body, len(raw)), chunk=chunk) is None
    for raw_bytes in (0, len(raw) - 1, len(raw) + 1, 2**20, 2**31 - 1):
        assert decode_rows(50, page(DATA, 50, PLAIN, body, raw_bytes), chunk=chunk) is None
    for length in range(len(body)):
        assert (
            decode_rows(50, page(DATA, 50, PLAIN, body[:length], len(raw)) + bytes(64), chunk=chunk) is None
        )
    assert decode_rows(50, page(DATA, 50, PLAIN, bytes(len(body)), len(raw)), chunk=chunk) is None
    empty = pa.compress(b"", name, asbytes=True)
    nulls = NUMBER._replace(codec=codec)
    assert decode_rows(3, page(DATA, 0, PLAIN, empty, 0), page(DATA, 3, PLAIN, empty, 0), chunk=nulls) is None
