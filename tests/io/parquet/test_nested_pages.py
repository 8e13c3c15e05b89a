"""Handmade pages of lists and structs, valid and invalid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tests.core.pools import GuardedPool
from tests.io.chunks import (
    BY_DICTIONARY,
    DATA,
    DELTA,
    DICTIONARY,
    PLAIN,
    lay_out,
    needs_library,
    page,
    page_v2,
    run_of,
    runs,
    sized,
    words,
)
from windrow.core.buffer_pool import BufferPool
from windrow.io.parquet import chunk_decoder, decoder_library
from windrow.io.parquet.chunk_decoder import decode_nested
from windrow.io.parquet.stored_chunks import NestedLeaf

pytestmark = needs_library
# of optional lists with required items: 0 is null, 1 empty, 2 a value
LEAF = NestedLeaf(0, 0, 0, 0, 0, 8, "UNCOMPRESSED", list_level=1, max_level=2)
LISTS = pa.list_(pa.int64())
FIELD = NestedLeaf(0, 0, 0, 0, 0, 8, "UNCOMPRESSED", list_level=-1, max_level=1)


def decode_groups(*groups: Sequence[tuple[NestedLeaf, bytes]], kind: pa.DataType = LISTS) -> list[Any] | None:
    """The rows of a column, None if it is declined. Checks that nothing is written out of bounds."""
    content, pool, found = b"", GuardedPool(), []
    for group in groups:
        leaves, content = lay_out(group, content)
        found.append(tuple(leaves))
    array = decode_nested(pa.BufferReader(content), found, kind, pool)
    pool.assert_guarded()
    if array is None:
        return None
    array.validate(full=True)
    return list(array.to_pylist())


def decode_lists(
    rows: int, values: int, *pages: bytes, leaf: NestedLeaf = LEAF, **options: Any
) -> list[Any] | None:
    return decode_groups([(leaf._replace(rows=rows, values=values), b"".join(pages))], **options)


def lists(rep: bytes, definition: bytes, *numbers: int, count: int) -> tuple[bytes, bytes]:
    """The same page in both versions; rows and nulls of the second are not checked, since levels tell them."""
    first = page(DATA, count, PLAIN, sized(rep) + sized(definition) + words(*numbers))
    return first, page_v2(count, 0, 0, rep, definition, words(*numbers))


# [[1, 2], None, [], [3], [4, 5, 6]]
REPS, DEFS = (0, 1, 0, 0, 0, 0, 1, 1), (2, 2, 0, 1, 2, 2, 2, 2)
ROWS = [[1, 2], None, [], [3], [4, 5, 6]]


def of_runs(levels: Sequence[int]) -> bytes:
    return b"".join(run_of(level, 1) for level in levels)


@pytest.mark.parametrize("rep", [runs(1, *REPS), of_runs(REPS)])
@pytest.mark.parametrize("definition", [runs(2, *DEFS), of_runs(DEFS), runs(2, *DEFS[:8]) + b"\xff"])
def test_levels_tell_lists_nulls_and_empty_lists(rep: bytes, definition: bytes) -> None:
    for pages in lists(rep, definition, *range(1, 7), count=8):
        assert decode_lists(5, 8, pages) == ROWS


@pytest.mark.parametrize(
    ("reps", "defs"),
    [
        ((1, 1, 0, 0, 0, 0, 1, 1), DEFS),
        ((1,) * 8, DEFS),
        ((0, 1, 0, 0, 0, 0, 1, 2), DEFS),
        ((255, 1, 0, 0, 0, 0, 1, 1), DEFS),
        ((0, 1, 1, 0, 0, 0, 1, 1), DEFS),
        ((0, 1, 0, 1, 0, 0, 1, 1), DEFS),
        (REPS, (2, 2, 0, 1, 2, 2, 2, 3)),
        (REPS, (2, 2, 0, 255, 2, 2, 2, 2)),
        (REPS, (2, 1, 0, 1, 2, 2, 2, 2)),
        (REPS, (2, 2, 2, 2, 2, 2, 2, 2)),
        ((0, 1, 0, 0, 0, 1, 1, 1), DEFS),
        ((0, 0, 0, 0, 0, 0, 1, 1), DEFS),
        (REPS[:7], DEFS),
        (REPS, DEFS[:7]),
    ],
    ids=[
        *("begins within a list", "no row", "repetition 2", "repetition 255", "continues a null list"),
        *("continues an empty list", "definition 3", "definition 255", "null in a list", "more values"),
        *("fewer rows", "more rows", "repetition is missing", "definition is missing"),
    ],
)
def test_wrong_levels_are_declined(reps: tuple[int, ...], defs: tuple[int, ...]) -> None:
    for pages in lists(of_runs(reps), of_runs(defs), *range(1, 7), count=8):
        assert decode_lists(5, 8, pages) is None
    if max(reps) < 2 and max(defs) < 4:
        for pages in lists(runs(1, *reps), runs(2, *defs), *range(1, 7), count=8):
            # padding of the last group stands for a missing level
            if len(reps) == len(defs) == 8:
                assert decode_lists(5, 8, pages) is None


@pytest.mark.parametrize(("reps", "rows"), [((1, 1, 1), 0), ((1, 0, 1), 1), ((0, 0, 1), 1), ((0, 1, 1), 2)])
def test_wrong_rows_of_full_lists_are_declined(reps: tuple[int, ...], rows: int) -> None:
    for rep in (of_runs(reps), runs(1, *reps)):
        for pages in lists(rep, run_of(2, 3), 7, 8, 9, count=3):
            assert decode_lists(rows, 3, pages) is None


@pytest.mark.parametrize("sound", [True, False])
def test_rows_span_pages_and_row_groups(sound: bool) -> None:
    pages = [
        *lists(of_runs([0, 1]), run_of(2, 2), 1, 2, count=2)[:1],
        lists(of_runs([1, 0]), of_runs([2, 1]), 3, count=2)[1],
        *lists(b"", b"", count=0)[:1],
        lists(of_runs([0, 1, 1]), run_of(2, 3), 4, 5, 6, count=3)[0],
    ]
    more = lists(of_runs([0 if sound else 1, 0]), of_runs([2, 0]), 7, count=2)[0]
    leaf = LEAF._replace(rows=3, values=7)
    empty = (LEAF._replace(rows=0, values=0), b"")
    found = decode_groups(
        [(leaf, b"".join(pages))], [empty], [(LEAF._replace(rows=2 if sound else 1, values=2), more)]
    )
    assert found == ([[1, 2, 3], [], [4, 5, 6], [7], None] if sound else None)


def test_group_without_rows_has_no_values() -> None:
    """Else values of the next row group would be those of another row."""
    stray = lists(run_of(1, 2), run_of(2, 2), 8, 9, count=2)[0]
    rest = lists(of_runs([0, 1]), run_of(2, 2), 1, 2, count=2)[0]
    kind = pa.list_(pa.int64(), 2)
    for more, found in (((0, b""), [[1, 2]]), ((2, stray), None)):
        groups = [
            [(LEAF._replace(rows=0, values=more[0]), more[1])],
            [(LEAF._replace(rows=1, values=2), rest)],
        ]
        assert decode_groups(*groups, kind=kind) == found


def test_pages_with_more_or_fewer_values_than_stated_are_declined() -> None:
    for pages in lists(runs(1, *REPS), runs(2, *DEFS), *range(1, 7), count=8):
        assert decode_lists(5, 7, pages) is None
        assert decode_lists(5, 9, pages) is None
        assert decode_lists(5, 0, b"") is None
    for short in lists(runs(1, *REPS), runs(2, *DEFS), *range(1, 6), count=8):
        assert decode_lists(5, 8, short) is None


def test_levels_beyond_the_page_are_declined() -> None:
    rep, definition, values = runs(1, *REPS), runs(2, *DEFS), words(*range(1, 7))
    assert decode_lists(5, 8, page(DATA, 8, PLAIN, sized(rep) + sized(definition) + values)) == ROWS
    for wrong in (200, 2**31, 2**32 - 1):
        length = wrong.to_bytes(4, "little")
        for body in (length + rep + sized(definition) + values, sized(rep) + length + definition + values):
            assert decode_lists(5, 8, page(DATA, 8, PLAIN, body) + bytes(64)) is None
    for name in ("def_bytes", "rep_bytes"):
        for wrong in (-1, 1, 60, 2**31 - 1):
            sizes = {name: wrong}
            pages = page_v2(8, 0, 0, rep, definition, values, **{} if wrong < 0 else sizes)
            assert (decode_lists(5, 8, pages + bytes(64)) == ROWS) == (wrong < 0)


@pytest.mark.parametrize(("levels", "fits"), [(32, True), (31, False)])
def test_page_with_more_levels_than_fit_is_declined(
    monkeypatch: pytest.MonkeyPatch, levels: int, fits: bool
) -> None:
    monkeypatch.setattr(chunk_decoder, "_LEVELS_BYTES", levels)
    pages = lists(runs(1, *REPS), runs(2, *DEFS), *range(1, 7), count=8)[0]
    assert decode_lists(5, 8, pages) == (ROWS if fits else None)


def test_encodings_of_items() -> None:
    rep, definition = runs(1, *REPS), runs(2, *DEFS)
    levels, dictionary = sized(rep) + sized(definition), page(DICTIONARY, 6, PLAIN, words(*range(1, 7)))
    by_index = page(DATA, 8, BY_DICTIONARY, levels + b"\3" + runs(3, *range(6)))
    assert decode_lists(5, 8, dictionary, by_index) == ROWS
    assert decode_lists(5, 8, dictionary, by_index[:-1] + bytes(1)) != ROWS
    beyond = page(DATA, 8, BY_DICTIONARY, levels + b"\3" + runs(3, 0, 1, 2, 3, 4, 6))
    assert decode_lists(5, 8, dictionary, beyond) is None
    assert decode_lists(5, 8, by_index) is None
    assert decode_lists(5, 8, page(DATA, 8, DELTA, levels)) is None


# --- several leaves

PAIRS = pa.list_(pa.struct([pa.field("a", pa.int64(), False), pa.field("b", pa.int64(), False)]))


def test_leaves_of_one_list_must_agree() -> None:
    def group(*leaves: tuple[int, bytes]) -> list[tuple[NestedLeaf, bytes]]:
        return [(LEAF._replace(rows=2, values=values), pages) for values, pages in leaves]

    full = lists(of_runs([0, 1, 0]), of_runs([2, 2, 0]), 1, 2, count=3)[0]
    assert decode_groups(group((3, full), (3, full)), kind=PAIRS) == [
        [{"a": 1, "b": 1}, {"a": 2, "b": 2}],
        None,
    ]
    others = [
        # empty instead of null, the other list is null, another length
        (3, lists(of_runs([0, 1, 0]), of_runs([2, 2, 1]), 1, 2, count=3)[0]),
        (3, lists(of_runs([0, 0, 1]), of_runs([0, 2, 2]), 1, 2, count=3)[0]),
        (2, lists(of_runs([0, 0]), of_runs([2, 0]), 1, count=2)[0]),
    ]
    for other in others:
        assert decode_groups(group((3, full), other), kind=PAIRS) is None
        assert decode_groups(group(other, (3, full)), kind=PAIRS) is None


def test_structs_have_a_value_in_every_field() -> None:
    kind = pa.struct({"a": pa.int64()})
    for definition, rows, found in (
        (run_of(1, 2), 2, [{"a": 7}, {"a": 8}]),
        (of_runs([1, 0]), 2, None),
        (run_of(1, 1), 2, None),
        (run_of(1, 2), 1, None),
        (run_of(1, 2), 3, None),
    ):
        pages = page(DATA, 2, PLAIN, sized(definition) + words(7, 8))
        assert decode_lists(rows, 2, pages, leaf=FIELD, kind=kind) == found
        second = page_v2(2, 0, 2, b"", definition, words(7, 8))
        assert decode_lists(rows, 2, second, leaf=FIELD, kind=kind) == found


def test_lists_of_fixed_size_have_that_size() -> None:
    pages = lists(of_runs([0, 1, 0, 1]), run_of(2, 4), 1, 2, 3, 4, count=4)[0]
    assert decode_lists(2, 4, pages, kind=pa.list_(pa.int64(), 2)) == [[1, 2], [3, 4]]
    assert decode_lists(2, 4, pages, kind=pa.list_(pa.int64(), 1)) is None
    assert decode_lists(2, 4, pages, kind=pa.list_(pa.int64(), 4)) is None
    for definition in ([2, 2, 0], [2, 2, 1]):
        short = lists(of_runs([0, 1, 0]), of_runs(definition), 1, 2, count=3)[0]
        assert decode_lists(2, 3, short, kind=pa.list_(pa.int64(), 2)) is None


# --- what the footer states


@pytest.mark.parametrize("values", [2**23 + 1, 2**40, 2**60, 2**63 - 1])
def test_impossible_number_of_values_allocates_nothing(values: int) -> None:
    class Untouched(BufferPool):
        def take(self, nbytes: int) -> NDArray[np.uint8]:
            raise AssertionError(f"{nbytes} bytes were taken")

    leaves = (LEAF._replace(rows=1, values=values),) * 2
    assert decode_nested(pa.BufferReader(b""), [leaves, leaves], PAIRS, Untouched(0)) is None


def test_leaf_beyond_the_file_and_other_widths_are_declined() -> None:
    pages = lists(of_runs([0, 1]), run_of(2, 2), 1, 2, count=2)[0]
    leaf = LEAF._replace(rows=1, values=2, size_bytes=len(pages))
    file, pool = pa.BufferReader(pages), BufferPool(0)
    assert decode_nested(file, [(leaf,)], LISTS, pool) is not None
    assert decode_nested(file, [(leaf._replace(size_bytes=len(pages) + 1),)], LISTS, pool) is None
    assert decode_nested(file, [(leaf,), (leaf._replace(width=4),)], LISTS, pool) is None


def test_lists_with_more_items_than_4_bytes_count_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = lists(of_runs([0, 1]), run_of(2, 2), 1, 2, count=2)[0]
    monkeypatch.setattr("windrow.core.text_types._MAX_BYTES", 1)
    assert decode_lists(1, 2, pages) is None
    assert decode_lists(1, 2, pages, kind=pa.large_list(pa.int64())) == [[1, 2]]


@pytest.mark.parametrize(("scratch_bytes", "fits"), [(64, True), (63, False)])
def test_dictionary_larger_than_the_scratch_memory_is_declined(
    monkeypatch: pytest.MonkeyPatch, scratch_bytes: int, fits: bool
) -> None:
    pool = GuardedPool()
    monkeypatch.setattr(decoder_library.SCRATCH, "memory", pool.take(scratch_bytes))
    levels = sized(of_runs([0, 1])) + sized(run_of(2, 2))
    dictionary = page(DICTIONARY, 2, PLAIN, words(1, 2))
    pages = page(DATA, 2, BY_DICTIONARY, levels + b"\1" + runs(1, 0, 1))
    assert decode_lists(1, 2, dictionary, pages) == ([[1, 2]] if fits else None)
    pool.assert_guarded()
