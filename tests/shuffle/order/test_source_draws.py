"""Drawing the sources of rows: every lawful order can come and no other, and early rows are fair, in C as in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from windrow.shuffle.kernels import native, row_positions
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.source_draws import draw_sources

WEIGHTS = st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any)
# beside those, long periods, with sources that come once in them
LONG = st.lists(st.sampled_from([0, 1, 2, 3, 999, 1_000, 2**13 - 1, 2**14]), min_size=1, max_size=6).filter(
    any
)
KEYS = st.binary(min_size=32, max_size=32)
needs_library = pytest.mark.skipif(native.LIBRARY is None, reason="built without a C compiler")


def draw(weights: Sequence[int], rows: int, key: bytes) -> list[int]:
    found: list[int] = draw_sources(np.array(weights, np.int64), rows, key).tolist()
    return found


@examples(60)
@given(st.one_of(WEIGHTS, LONG), KEYS)
def test_every_beginning_holds_the_shares(weights: list[int], key: bytes) -> None:
    total = sum(weights)
    drawn = np.array(draw(weights, total, key))
    rows = np.arange(1, total + 1)
    for source, weight in enumerate(weights):
        counts = (drawn == source).cumsum()
        assert np.abs(counts * total - rows * weight).max() < total
        assert counts[-1] == weight


@pytest.mark.parametrize("weights", [[1, 2**20], [2**20, 3, 0, 2**19 + 1], [2**30, 2**29, 2**28]])
def test_periods_of_any_length(weights: list[int]) -> None:
    total = sum(weights)
    drawn = np.array(draw(weights, 5_000, bytes(32)))
    for source, weight in enumerate(weights):
        counts = (drawn == source).cumsum()
        assert np.abs(counts * total - np.arange(1, 5_001) * weight).max() < total


@needs_library
@examples(60)
@given(st.one_of(WEIGHTS, LONG), KEYS, st.floats(0, 1))
def test_the_kernel_and_its_twin_agree(weights: list[int], key: bytes, part: float) -> None:
    # the twin takes a second for the longest periods
    rows = max(1, int(part * min(2_000, sum(weights))))
    drawn = draw(weights, rows, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        assert draw(weights, rows, key) == drawn


@examples(60)
@given(WEIGHTS, KEYS, st.floats(0, 1))
def test_fewer_rows_are_the_beginning_of_more(weights: list[int], key: bytes, part: float) -> None:
    rows = max(1, int(part * sum(weights)))
    assert draw(weights, sum(weights), key)[:rows] == draw(weights, rows, key)


def lawful_orders(weights: Sequence[int], begun: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """All orders in which each source is always less than one row away from its share."""
    total = sum(weights)
    counts = [begun.count(source) for source in range(len(weights))]
    if any(
        abs(count * total - len(begun) * weight) >= total
        for count, weight in zip(counts, weights, strict=True)
    ):
        return
    if len(begun) == total:
        yield begun
        return
    for source in range(len(weights)):
        yield from lawful_orders(weights, (*begun, source))


@pytest.mark.parametrize("weights", [[2, 1, 1], [3, 2], [4, 1, 2], [1, 0, 1, 1], [1, 1, 1, 1, 3], [5, 3, 1]])
def test_every_lawful_order_can_come_and_no_other(weights: list[int]) -> None:
    drawn = {tuple(draw(weights, sum(weights), derive_key(7, "test", at, 0))) for at in range(6_000)}
    assert drawn == set(lawful_orders(weights))


# the second are those of the Pile
UNEVEN = [350, 250, 150, 100, 80, 40, 25, 5]
PILE = [1811, 1669, 1221, 1066, 876, 615, 569, 498, 396, 359, 215, 212, 197, 158, 91, 76, 69, 38, 64]


@pytest.mark.parametrize(
    "weights",
    [
        UNEVEN,
        PILE,
        [2520 // number for number in range(1, 11)],
        [1] * 20,
        [99, 1],
        [90, *[1] * 10],
        [64, 32, 16, 8, 4, 2, 1, 1],
        [50, 30, 15, 4, 1],
    ],
    ids=["uneven", "pile", "zipf", "even", "two", "one large", "halves", "five"],
)
def test_shares_are_fair_before_a_source_is_due(weights: list[int]) -> None:
    """Over many keys, each source comes about as often as it is due, in any beginning."""
    total, keys = sum(weights), 4_000
    rows = [each for each in (1, 2, 8, 16, 32, 100) if each <= total]
    given_weights, counts = np.array(weights, np.int64), np.zeros((len(rows), len(weights)))
    for at in range(keys):
        drawn = draw_sources(given_weights, rows[-1], derive_key(at, "test", 0, 0))
        for number, first in enumerate(rows):
            counts[number] += np.bincount(drawn[:first], minlength=len(weights))
    due = np.array(rows)[:, None] * given_weights / total
    # four standard deviations of a mean
    error = 4 * np.sqrt(due % 1 * (1 - due % 1) / keys)
    # the first row comes from each source exactly as often as its share says
    tolerances = np.where(np.array(rows) == 1, 0, 0.15)[:, None]
    assert (np.abs(counts / keys - due) <= tolerances * due + error).all()


@needs_library
def test_arguments_that_do_not_fit_are_errors() -> None:
    weights, draws = np.array([2, 1]), np.zeros((3, 2))
    assert row_positions.draw_sources(weights, draws, 3).tolist() == [0, 0, 1]
    for changed in (
        (np.array([2, -1]), draws, 3),
        (np.array([2.0, 1.0]), draws, 3),
        (weights, np.zeros((4, 2)), 3),
        (weights, draws[:1], 2),
        (np.array([2**30, 2**30]), draws, 2**31),
        (weights, draws + 1, 3),
        (weights, np.zeros(6), 3),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            row_positions.draw_sources(*changed)
