"""Rounds: bijections of [0, 2^bits) for every word width."""

from __future__ import annotations

import numpy as np
import pytest

from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import MULTIPLIERS_32, MULTIPLIERS_64, Rounds

KEY = derive_key(7, "rows", 1, 2)


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
