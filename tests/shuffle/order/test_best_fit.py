"""Documents are placed whole by best fit, in C as in Python, and fill sequences almost completely."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.shuffle.kernels import native
from windrow.shuffle.order.best_fit import count_sequences, pack_documents, sequences_key
from windrow.shuffle.order.window_order import order_window


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, list[int]]:
    # around the words of the levels of bits
    capacity = draw(
        st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 4_095, 4_096, 4_097, 2**18, 2**24 - 1]))
    )
    sizes = st.one_of(
        st.integers(0, capacity),
        st.integers(max(0, capacity - 3), capacity),
        st.integers(0, min(9, capacity)),
    )
    return capacity, draw(st.lists(sizes, max_size=60))


@by_day(100)
@given(windows(), st.sampled_from([None, 5]))
def test_every_document_is_whole(window: tuple[int, list[int]], seed: int | None) -> None:
    capacity, sizes = window
    lengths = np.array(sizes, np.int32)
    order = order_window(seed=seed, epoch=1, window=2, rows=len(sizes), first_row=7 * capacity)
    key = sequences_key(seed, 1, 2)
    packed = pack_documents(order, lengths, capacity, key)
    count = count_sequences(lengths, capacity)
    if native.LIBRARY is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "LIBRARY", None)
            twin = pack_documents(order, lengths, capacity, key)
            assert count == count_sequences(lengths, capacity)
        assert packed.starts.tolist() == twin.starts.tolist()
        assert packed.padding.tolist() == twin.padding.tolist()
    filled = lengths > 0
    starts, stops = (
        (packed.starts - order.first_row)[filled],
        (packed.starts - order.first_row + lengths)[filled],
    )
    assert (starts // capacity == (stops - 1) // capacity).all()
    # with padding, they are all tokens of all sequences, one behind the other
    in_turn = np.argsort(starts)
    ends = (stops + packed.padding[filled])[in_turn].tolist()
    assert [0, *ends] == [*starts[in_turn].tolist(), count * capacity]
    assert (packed.padding[~filled] == 0).all()
    assert ((packed.padding[filled] == 0) | (-stops % capacity == packed.padding[filled])).all()


@pytest.mark.parametrize(
    ("documents", "mean", "least"), [(2_000, 700, 0.99), (500, 300, 0.97), (20_000, 1_000, 0.99)]
)
def test_sequences_are_full(documents: int, mean: float, least: float) -> None:
    drawn = np.random.default_rng(1).lognormal(0, 1, documents) * mean / np.exp(0.5)
    lengths = np.clip(drawn, 1, 4_096).astype(np.int32)
    assert lengths.sum() / (count_sequences(lengths, 4_096) * 4_096) >= least


@pytest.mark.skipif(native.LIBRARY is None, reason="built without a C compiler")
@pytest.mark.parametrize(("sizes", "capacity"), [([0], 4), ([5], 4), ([1], 0), ([1], 2**24)])
def test_sizes_that_do_not_fit_are_rejected(sizes: list[int], capacity: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        native.best_fit(np.array(sizes, np.int32), capacity)
