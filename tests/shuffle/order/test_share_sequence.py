"""The order of a mixture's sources: shares hold in every beginning, and places are those that it says."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from windrow.shuffle.order.share_sequence import ShareSequence

WEIGHTS = st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any)
KEYS = st.binary(min_size=32, max_size=32)


@examples(60)
@given(WEIGHTS, KEYS)
def test_every_beginning_holds_the_shares(weights: list[int], key: bytes) -> None:
    sequence = ShareSequence(weights, key)
    total = sum(weights)
    of_source = sequence.sources[:, None] == np.arange(len(weights))
    counts = of_source.cumsum(axis=0)
    rows = np.arange(1, sequence.period + 1)[:, None]
    missed = np.abs(counts * total - rows * np.array(weights))
    assert missed.max() < total
    assert (missed[-1] == 0).all()


@examples(100)
@given(WEIGHTS, KEYS, st.integers(0, 10**6))
def test_places_and_counts_are_inverse(weights: list[int], key: bytes, number: int) -> None:
    sequence = ShareSequence(weights, key)
    source = next(at for at, weight in enumerate(weights) if weight)
    (place,) = sequence.places(source, np.array([number])).tolist()
    assert sequence.sources[place % sequence.period] == source
    assert (sequence.count(source, place), sequence.count(source, place + 1)) == (number, number + 1)
    assert sequence.counts(place).sum() == place


def test_the_key_chooses_among_the_orders() -> None:
    one, other = (ShareSequence([3, 2, 1], bytes([at]) * 32).sources for at in (1, 2))
    assert (one != other).any()
    # not one pattern again and again
    assert (one[:600] != one[600:1200]).any()


@examples(60)
@given(WEIGHTS, KEYS, st.integers(0, 3 * 10**4))
def test_what_was_asked_before_changes_nothing(weights: list[int], key: bytes, rows: int) -> None:
    """The beginning of a period is drawn alone, where nobody asks for more."""
    short, whole = ShareSequence(weights, key), ShareSequence(weights, key)
    assert len(whole.sources) == whole.period
    assert short.counts(rows).tolist() == whole.counts(rows).tolist()
    tables = [each.table(np.array([rows, 5, 0])).tolist() for each in (short, whole)]
    assert tables[0] == tables[1]
    for source in np.flatnonzero(weights).tolist():
        numbers = np.arange(short.count(source, rows)) + 1
        assert short.places(source, numbers).tolist() == whole.places(source, numbers).tolist()
        assert short.least(source, rows) <= short.count(source, rows) <= short.most(source, rows)
        for each in (short, whole):
            scattered = numbers - 1
            each.scatter(source, scattered, range(101, 101 + len(numbers)), 100, 0)
            assert scattered.tolist() == whole.places(source, numbers).tolist()


def test_a_beginning_is_drawn_alone() -> None:
    sequence = ShareSequence([2**16, 2**15, 2**14, 1], bytes(32))
    assert sequence.counts(200).sum() == 200
    assert sequence.places(2, np.array([10])) < 200
    assert len(sequence._begun.sources) == 256
    assert sequence.count(0, 5_000) == sequence.count(0, sequence.period + 5_000) - 2**16
    assert len(sequence._begun.sources) == 8_192


@pytest.mark.parametrize(
    "weights",
    [[99, 1], [1, 40, 59], [90, *[1] * 10], [50, 30, 15, 4, 1], [70, 50, 30, 20, 16, 8, 5, 1]],
)
def test_a_source_comes_also_where_shares_change_before_it_is_due(weights: list[int]) -> None:
    """Of 200 stretches in which it is due 0.16 times, it comes in about 32, and in no less than half of them."""
    rare = weights.index(1)
    keys = [np.random.default_rng(seed).bytes(32) for seed in range(200)]
    found = sum(ShareSequence(weights, key).count(rare, 16) for key in keys)
    assert 16 <= found <= 64


def test_a_copy_of_another_process_is_the_same() -> None:
    sequence = ShareSequence([3, 2, 1], bytes(32))
    copy = pickle.loads(pickle.dumps(sequence))
    assert (copy.sources == sequence.sources).all()
    assert copy.period == sequence.period
