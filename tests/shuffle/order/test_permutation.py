"""Permutations: bijections, computed in any slices, that agree with the definition."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from tests.shuffle.kernels.test_native import needs_library, without_library
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import (
    EXACT_ROWS,
    MAX_ROWS,
    MULTIPLIERS_32,
    MULTIPLIERS_64,
    Permutation,
    Rounds,
    _stable_order,
    block_order,
)

KEY = derive_key(7, "rows", 1, 2)
LARGE_SIZES = [2**32 - 1, 2**32, 2**32 + 1, 2**33 - 1, 2**33 + 1, 2**40, 2**40 + 1, MAX_ROWS - 1, MAX_ROWS]


def assert_bijection(permutation: Permutation) -> None:
    positions = permutation.positions(0, permutation.size)
    assert positions.dtype == np.int64
    assert np.array_equal(np.sort(positions), np.arange(permutation.size))
    assert np.array_equal(permutation.rows_at(positions), np.arange(permutation.size))


@by_day(30)
@given(seed=st.integers(), size=st.integers(0, 200_000))
def test_every_position_is_taken_once(seed: int, size: int) -> None:
    assert_bijection(Permutation(derive_key(seed, "rows", 0, 0), size))


@pytest.mark.parametrize(
    "size",
    [0, 1, 2, 3, 65_535, 65_536, 65_537, 2**17 - 1, 2**17, 2**17 + 1, 2**20 - 1, 2**20, 2**20 + 1, 3_000_000],
)
def test_every_position_is_taken_once_around_powers_of_two(size: int) -> None:
    assert_bijection(Permutation(KEY, size))


@by_day(30)
@given(size=st.integers(0, 200_000), data=st.data())
def test_slices_agree_with_the_whole(size: int, data: st.DataObject) -> None:
    permutation = Permutation(KEY, size)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    edges = [0, *cuts, size]
    slices = [permutation.positions(*edge) for edge in pairwise(edges)]
    assert np.array_equal(np.concatenate(slices), permutation.positions(0, size))


@pytest.mark.parametrize("size", LARGE_SIZES)
def test_large_sizes_in_samples(size: int) -> None:
    permutation = Permutation(KEY, size)
    starts = [0, size // 3, size - 20_000]
    sample = np.concatenate([permutation.positions(start, start + 20_000) for start in starts])
    assert sample.min() >= 0
    assert sample.max() < size
    assert np.unique(sample).size == sample.size
    rows = np.concatenate([np.arange(start, start + 20_000) for start in starts])
    assert np.array_equal(permutation.rows_at(sample), rows)


@pytest.mark.parametrize(("size", "wrong"), [(0, 0), (10, 10), (70_000, 70_000), (70_000, -1)])
def test_positions_out_of_range_raise(size: int, wrong: int) -> None:
    with pytest.raises(ValueError, match=r"positions do not lie in \[0, "):
        Permutation(KEY, size).rows_at(np.array([wrong]))
    assert Permutation(KEY, size).rows_at(np.zeros(0, np.int64)).tolist() == []


# The definition, one row at a time in Python's unbounded integers.

C32 = (0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1, 0x7FEB352D, 0x846CA68B, 0x27D4EB2F)


def reference_position(permutation: Permutation, row: int) -> int:
    rounds = permutation._rounds
    bits = (permutation.size - 1).bit_length()
    value = row
    while True:
        for key, multiplier in zip(rounds.keys, rounds.multipliers, strict=True):
            value = ((value ^ key) * multiplier) % 2**bits
            value ^= value >> ((bits + 1) // 2)
        if value < permutation.size:
            return value


@pytest.mark.parametrize("size", [65_537, 100_000, 2**17, 2**20 + 1, *LARGE_SIZES])
def test_positions_are_those_of_the_definition(size: int) -> None:
    permutation = Permutation(KEY, size)
    start = size // 2
    expected = [reference_position(permutation, row) for row in range(start, start + 50)]
    assert permutation.positions(start, start + 50).tolist() == expected


def test_multipliers_below_and_above_32_bits() -> None:
    assert Permutation(KEY, 2**32)._rounds.multipliers == C32
    assert all(c % 2 and c >> 33 for c in Permutation(KEY, 2**32 + 1)._rounds.multipliers)


@pytest.mark.parametrize("size", [2, 1_000, EXACT_ROWS])
def test_small_positions_are_ranks_of_philox(size: int) -> None:
    raw = np.random.Philox(key=int.from_bytes(KEY[:16], "little")).random_raw(size).tolist()
    ranked = sorted(range(size), key=lambda row: (raw[row], row))
    assert np.array_equal(np.argsort(Permutation(KEY, size).positions(0, size)), ranked)


@by_day(60)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([2**63, 2**63 + 1, 2**63 + 2**16])
        ),
        max_size=60,
    )
)
def test_words_that_begin_alike_come_in_stable_order(words: list[int]) -> None:
    expected = sorted(range(len(words)), key=lambda row: (words[row], row))
    assert _stable_order(np.array(words, np.uint64)).tolist() == expected


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_positions_belong_to_the_caller(size: int) -> None:
    permutation = Permutation(KEY, size)
    positions = permutation.positions(10, 900)
    before = positions.copy()
    positions[:] = -1
    assert np.array_equal(permutation.positions(10, 900), before)


def test_a_permutation_is_a_small_value() -> None:
    permutation = Permutation(KEY, EXACT_ROWS)
    before = permutation.positions(0, EXACT_ROWS)
    stored = pickle.dumps(permutation)
    assert len(stored) < 300
    assert pickle.loads(stored) == permutation
    assert hash(pickle.loads(stored)) == hash(permutation)
    assert np.array_equal(pickle.loads(stored).positions(0, EXACT_ROWS), before)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (6, 5), (0, 100_001)])
def test_rows_out_of_range_raise(size: int, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="do not lie in"):
        Permutation(KEY, size).positions(start, stop)


@pytest.mark.parametrize(
    "make",
    [lambda: Permutation(KEY, -1), lambda: Permutation(KEY, 2**62 + 1), lambda: Permutation(b"short", 1)],
)
def test_sizes_and_keys_out_of_range_raise(make: Callable[[], Permutation]) -> None:
    with pytest.raises(ValueError, match=r"a (permutation|key) has"):
        make()


@pytest.mark.parametrize("blocks", [0, 1, 2, 500, 70_000])
def test_block_order_inverts_positions(blocks: int) -> None:
    order = block_order(KEY, blocks)
    assert order.dtype == np.int64
    assert np.array_equal(Permutation(KEY, blocks).positions(0, blocks)[order], np.arange(blocks))


@pytest.mark.parametrize("bits", range(1, 21))
def test_every_value_is_taken_once(bits: int) -> None:
    values = Rounds.from_key(KEY, bits).mix_range(0, 1 << bits)
    assert np.array_equal(np.sort(values), np.arange(1 << bits))


@pytest.mark.parametrize("bits", [31, 32, 33, 47, 62])
def test_wide_words_stay_in_range(bits: int) -> None:
    end = 1 << bits
    values = Rounds.from_key(KEY, bits).mix_range(end - 5_000, end)
    assert values.dtype == (np.uint32 if bits <= 32 else np.uint64)
    assert int(values.max()) < end
    assert np.unique(values).size == 5_000


def test_rounds_can_be_undone() -> None:
    """Applying the inverse rounds with Python's integers returns the input."""
    for bits in (17, 32, 33, 61):
        rounds = Rounds.from_key(KEY, bits)
        shift = (bits + 1) // 2
        for start, value in enumerate(rounds.mix_range(0, 100).tolist()):
            for key, multiplier in zip(rounds.keys[::-1], rounds.multipliers[::-1], strict=True):
                value ^= value >> shift
                value = value * pow(multiplier, -1, 1 << bits) % (1 << bits) ^ key
            assert value == start


def test_each_bit_of_the_key_counts() -> None:
    orders = set()
    for bit in range(8 * len(KEY)):
        changed = int.from_bytes(KEY, "little") ^ (1 << bit)
        orders.add(Rounds.from_key(changed.to_bytes(32, "little"), 20).keys)
    assert len(orders) == 8 * len(KEY)


def test_multipliers_are_odd_and_distinct_at_every_width() -> None:
    for multipliers, min_bits in ((MULTIPLIERS_32, 17), (MULTIPLIERS_64, 33)):
        assert all(multiplier % 2 for multiplier in multipliers)
        assert len({multiplier % (1 << min_bits) for multiplier in multipliers}) == 6


@needs_library
@by_day(30)
@given(key=st.binary(min_size=32, max_size=32), size=st.integers(0, EXACT_ROWS))
def test_ranks_are_those_of_numpy(key: bytes, size: int) -> None:
    compiled = Permutation(key, size).positions(0, size)
    with without_library():
        assert np.array_equal(Permutation(key, size).positions(0, size), compiled)


@needs_library
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 2**15 - 1, 2**15, 2**15 + 1, EXACT_ROWS - 1, EXACT_ROWS])
def test_ranks_are_those_of_numpy_around_powers_of_two(size: int) -> None:
    compiled = Permutation(KEY, size).positions(0, size)
    with without_library():
        assert np.array_equal(Permutation(KEY, size).positions(0, size), compiled)
