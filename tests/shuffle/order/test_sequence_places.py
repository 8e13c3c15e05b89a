"""SequencePlaces: every token of every whole sequence comes where the mixture has its sequence, and no other does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from windrow.shuffle.kernels.pieces import piece_rows
from windrow.shuffle.order.round_runs import SourceStretch
from windrow.shuffle.order.sequence_places import SequencePlaces
from windrow.shuffle.order.share_sequence import ShareSequence

FIRST, SECOND = ShareSequence([2, 1], bytes(32)), ShareSequence([1, 3], bytes(32))
# the second source has no share in between
BEFORE = FIRST.count(1, 9)
STRETCHES = (SourceStretch(0, 9, 0, FIRST), SourceStretch(14, 40, BEFORE, SECOND))


def place_of(number: int) -> int | None:
    """The mixture's row of a sequence of the second source."""
    for start, stop, before, sequence in STRETCHES:
        if number >= before:
            found = start + int(sequence.places(1, np.array([number - before]))[0])
            if found < stop:
                return found
    return None


@examples(100)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=12),
    seq_len=st.integers(1, 6),
    begin=st.integers(0, 15),
    first=st.integers(0, 8),
    count=st.integers(1, 6),
    order=st.randoms(use_true_random=False),
)
def test_tokens_come_where_their_sequences_do(
    lengths: list[int], seq_len: int, begin: int, first: int, count: int, order: object
) -> None:
    shuffled = list(enumerate(lengths))
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    starts, at = np.zeros(len(lengths), np.int64), begin
    for document, length in shuffled:
        starts[document] = at
        at += length
    sizes = np.array(lengths, np.int32)
    places = SequencePlaces(1, STRETCHES, seq_len, first, count)
    found = piece_rows(*places.cut(starts, sizes)).tolist()
    assert len(found) == sum(lengths)
    tokens = [
        start + token
        for start, length in zip(starts.tolist(), lengths, strict=True)
        for token in range(length)
    ]
    for token, row in zip(tokens, found, strict=True):
        place = place_of(first + token // seq_len) if token // seq_len < count else None
        if place is None:
            assert row < 0
        else:
            assert row == place * seq_len + token % seq_len
