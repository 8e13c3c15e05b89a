"""The order of one window: a bijection onto its rows of the epoch."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.shuffle.kernels.pieces import piece_rows
from windrow.shuffle.order.window_order import order_window, place_documents

SEEDS = st.none() | st.integers(-(2**70), 2**70)


@by_day(30)
@given(SEEDS, st.integers(0, 5), st.integers(0, 5), st.integers(0, 300), st.integers(0, 2**40), st.data())
def test_order_is_a_bijection_over_any_parts(
    seed: int | None, epoch: int, window: int, rows: int, first: int, data: st.DataObject
) -> None:
    order = order_window(seed=seed, epoch=epoch, window=window, rows=rows, first_row=first)
    cut = data.draw(st.integers(0, rows))
    sent = pickle.loads(pickle.dumps(order))
    parts = [*order.epoch_rows(0, cut).tolist(), *sent.epoch_rows(cut, rows).tolist()]
    assert parts == order.epoch_rows(0, rows).tolist()
    assert sorted(parts) == list(range(first, first + rows))
    if seed is None:
        assert parts == list(range(first, first + rows))


def test_repeated_calls_return_the_same_rows() -> None:
    order = order_window(seed=1, epoch=0, window=0, rows=50, first_row=9)
    assert order.epoch_rows(0, 50).tolist() == order.epoch_rows(0, 50).tolist()


def test_seed_epoch_and_window_all_count() -> None:
    orders = {
        tuple(order_window(seed=s, epoch=e, window=w, rows=30, first_row=0).epoch_rows(0, 30).tolist())
        for s in (None, 0, 1)
        for e in range(3)
        for w in range(3)
    }
    assert len(orders) == 1 + 2 * 9


@by_day(30)
@given(st.lists(st.integers(0, 5), max_size=30), st.none() | st.integers(0, 99), st.integers(0, 2**40))
def test_tokens_follow_the_order_of_documents(lengths: list[int], seed: int | None, first_row: int) -> None:
    order = order_window(seed=seed, epoch=2, window=1, rows=len(lengths), first_row=first_row)
    counts = np.array(lengths, np.int32)
    starts = place_documents(order, counts)
    rows = piece_rows(starts, counts)
    tokens = [(document, at) for document, length in enumerate(lengths) for at in range(length)]
    assert sorted(rows.tolist()) == list(range(first_row, first_row + len(tokens)))
    found = [token for _, token in sorted(zip(rows.tolist(), tokens, strict=True))]
    of_row = {row: document for document, row in enumerate(order.epoch_rows(0, len(lengths)).tolist())}
    expected = [(of_row[row], at) for row in sorted(of_row) for at in range(lengths[of_row[row]])]
    assert found == expected
