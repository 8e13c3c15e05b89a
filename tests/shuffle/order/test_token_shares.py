"""Shares of tokens: every source stays within the longest document of its share, in C as in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from windrow.shuffle.kernels import native, row_positions
from windrow.shuffle.order.token_shares import share_tokens

needs_library = pytest.mark.skipif(native.LIBRARY is None, reason="built without a C compiler")
WEIGHTS = st.lists(st.one_of(st.integers(0, 9), st.just(2**17 - 1)), min_size=1, max_size=6).filter(any)
LENGTHS = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2_000)), min_size=1, max_size=40)


def draw_documents(weights: Sequence[int], seed: int, lengths: Sequence[int]) -> list[np.ndarray]:
    """By source, documents of some lengths, which come in an order of its own."""
    generator = np.random.default_rng(seed)
    return [generator.permutation(np.array([*lengths, 1], np.int32)) for _ in weights]


def share(
    weights: Sequence[int], documents: Sequence[np.ndarray], most: int = 10_000, stop: int = 2**60
) -> tuple[list[int], int | None]:
    none = np.zeros(len(weights), np.int64)
    found, missing = share_tokens(
        np.array(weights, np.int64), none, documents, most=most, stop=stop, place=0, key=bytes(range(32))
    )
    return found.tolist(), missing


@examples(100)
@given(WEIGHTS, st.integers(0, 2**32 - 1), LENGTHS)
def test_every_beginning_holds_the_shares(weights: list[int], seed: int, lengths: list[int]) -> None:
    documents = draw_documents(weights, seed, lengths)
    sources, missing = share(weights, documents)
    assert missing is not None
    assert sources.count(missing) == len(documents[missing])
    tokens, taken, total = [0] * len(weights), [0] * len(weights), sum(weights)
    for source in sources:
        assert weights[source]
        tokens[source] += int(documents[source][taken[source]])
        taken[source] += 1
        for own, weight, each in zip(tokens, weights, documents, strict=True):
            ahead = own * total - sum(tokens) * weight
            assert -max(*lengths, 1) * total <= ahead <= int(each.max()) * (total - weight)


@examples(60)
@given(WEIGHTS, st.integers(0, 2**32 - 1), LENGTHS, st.integers(1, 9))
def test_documents_known_later_change_nothing(
    weights: list[int], seed: int, lengths: list[int], known: int
) -> None:
    """It is asked for some documents at a time, and goes on where it was."""
    documents = draw_documents(weights, seed, lengths)
    whole, _ = share(weights, documents)
    found: list[int] = []
    tokens, taken = np.zeros(len(weights), np.int64), [0] * len(weights)
    while len(found) < len(whole):
        ahead = [each[first : first + known] for each, first in zip(documents, taken, strict=True)]
        some, _ = share_tokens(
            np.array(weights, np.int64),
            tokens,
            ahead,
            most=7,
            stop=2**60,
            place=len(found),
            key=bytes(range(32)),
        )
        assert len(some)
        for source in some.tolist():
            tokens[source] += int(documents[source][taken[source]])
            taken[source] += 1
        found += some.tolist()
    assert found == whole


def test_documents_begin_up_to_a_token_and_up_to_a_number() -> None:
    documents = [np.full(9, 4, np.int32), np.full(9, 4, np.int32)]
    assert [len(share([1, 1], documents, stop=stop)[0]) for stop in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]
    assert [len(share([1, 1], documents, most=most)[0]) for most in (0, 1, 2, 30)] == [0, 1, 2, 18]
    assert share([1, 1], documents, most=18)[1] is None
    assert share([1, 1], [documents[0], documents[1][:0]]) == ([], 1)


def test_documents_that_end_at_once_come_in_another_order_each_time() -> None:
    documents = [np.full(200, 3, np.int32), np.full(200, 3, np.int32)]
    sources, _ = share([1, 1], documents)
    pairs = [sources[at : at + 2] for at in range(0, 400, 2)]
    assert all(sorted(pair) == [0, 1] for pair in pairs)
    assert 60 < pairs.count([0, 1]) < 140


@needs_library
@examples(100)
@given(WEIGHTS, st.integers(0, 2**32 - 1), LENGTHS, st.integers(0, 60), st.integers(0, 30_000))
def test_the_kernel_and_its_twin_agree(
    weights: list[int], seed: int, lengths: list[int], most: int, stop: int
) -> None:
    documents = draw_documents(weights, seed, lengths)
    found = share(weights, documents, most, stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        assert share(weights, documents, most, stop) == found


def test_numbers_that_the_kernel_cannot_multiply_are_left_to_the_twin() -> None:
    documents = [np.full(3, 5, np.int32), np.full(3, 5, np.int32)]
    weights = np.array([2**17, 2**17], np.int64)
    had = np.array([2**45 - 5, 2**45], np.int64)
    sources, _ = share_tokens(weights, had, documents, most=3, stop=2**60, place=0, key=bytes(32))
    assert sources[0] == 0
    assert sorted(sources.tolist()) == [0, 0, 1]


@needs_library
def test_the_kernel_takes_only_what_fits_together() -> None:
    weights, tokens = np.array([1, 2], np.int64), np.zeros(2, np.int64)
    documents = [np.ones(3, np.int32), np.ones(3, np.int32)]
    wrong = [
        (weights[:1], tokens, documents, 5, 9, 0, 0),
        (-weights, tokens, documents, 5, 9, 0, 0),
        (weights, tokens - 1, documents, 5, 9, 0, 0),
        (weights, tokens, documents[:1], 5, 9, 0, 0),
        (weights, tokens, [-each for each in documents], 5, 9, 0, 0),
        (weights, tokens, documents, -1, 9, 0, 0),
        (weights, tokens, documents, 5, 9, 0, 2**64),
        (weights, tokens + 2**62, documents, 5, 9, 0, 0),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match="do not fit together"):
            row_positions.share_tokens(*arguments)
