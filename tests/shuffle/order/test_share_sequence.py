"""The order of a mixture's sources: shares hold in every beginning, and places are those that it says."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from windrow.shuffle.order.share_sequence import (
    ShareSequence,
    _earliest_deadline_first,
    _holds_shares,
    _spread_evenly,
)

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


@examples(100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_earliest_deadlines_hold_any_shares(weights: list[int]) -> None:
    given_weights = np.array(weights, np.int64)
    assert _holds_shares(_earliest_deadline_first(given_weights), given_weights)


def test_a_source_that_comes_too_early_or_too_late_is_noticed() -> None:
    weights = np.array([2, 2], np.int64)
    assert _holds_shares(np.array([0, 1, 1, 0], np.int32), weights)
    assert not _holds_shares(np.array([0, 0, 1, 1], np.int32), weights)
    # small sources that all come in the middle, beside a large one that has no room there
    crowded = np.array([1, 1, 1, 1, 3], np.int64)
    assert not _holds_shares(_spread_evenly(crowded, np.full(5, 0.5)), crowded)
    assert _holds_shares(_earliest_deadline_first(crowded), crowded)
    sequence = ShareSequence(crowded.tolist(), bytes(32))
    assert not _holds_shares(_spread_evenly(sequence.weights, np.full(5, 0.5)), sequence.weights)
    assert _holds_shares(sequence.sources, sequence.weights)


def test_the_key_chooses_among_the_orders() -> None:
    one, other = (ShareSequence([3, 2, 1], bytes([at]) * 32).sources for at in (1, 2))
    assert (one != other).any()
    # not one pattern again and again
    assert (one[:600] != one[600:1200]).any()


@pytest.mark.parametrize("weights", [[99, 1], [1, 40, 59], [90, *[1] * 10], [50, 30, 15, 4, 1]])
def test_a_source_comes_also_where_shares_change_before_it_is_due(weights: list[int]) -> None:
    """Of 200 stretches in which it is due 0.16 times, it comes in about 32, and never in less than a third of them."""
    rare = weights.index(1)
    keys = [np.random.default_rng(seed).bytes(32) for seed in range(200)]
    found = sum(ShareSequence(weights, key).count(rare, 16) for key in keys)
    assert 32 // 3 <= found <= 64


def test_a_copy_of_another_process_is_the_same() -> None:
    sequence = ShareSequence([3, 2, 1], bytes(32))
    copy = pickle.loads(pickle.dumps(sequence))
    assert (copy.sources == sequence.sources).all()
    assert copy.period == sequence.period
