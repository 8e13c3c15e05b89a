"""The order of tokens is that of their documents, one behind the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.shuffle.order.window_order import order_window, place_documents, token_rows


@by_day(30)
@given(st.lists(st.integers(0, 5), max_size=30), st.none() | st.integers(0, 99), st.integers(0, 2**40))
def test_tokens_follow_the_order_of_documents(lengths: list[int], seed: int | None, first_row: int) -> None:
    order = order_window(seed=seed, epoch=2, window=1, rows=len(lengths), first_row=first_row)
    counts = np.array(lengths, np.int32)
    starts = place_documents(order, counts)
    rows = token_rows(starts, counts)
    tokens = [(document, at) for document, length in enumerate(lengths) for at in range(length)]
    assert sorted(rows.tolist()) == list(range(first_row, first_row + len(tokens)))
    found = [token for _, token in sorted(zip(rows.tolist(), tokens, strict=True))]
    of_row = {row: document for document, row in enumerate(order.epoch_rows(0, len(lengths)).tolist())}
    expected = [(of_row[row], at) for row in sorted(of_row) for at in range(lengths[of_row[row]])]
    assert found == expected
