"""The windows of a mixture's source, whose documents can be packed: sequences go over the borders of windows."""

from __future__ import annotations

from itertools import islice

import numpy as np

from windrow.core.source import BlockTable
from windrow.pipeline.plan.mixed_source import MixedSource, mean_window_rows
from windrow.shuffle.order.epoch_plan import WindowCut

TOKENS = np.array([5, 0, 3, 9, 1, 5], np.int64)


def source(seq_len: int | None) -> MixedSource:
    """A source in stored order, each of whose blocks is a window; other sources have ten blocks before."""
    sizes = np.full(len(TOKENS), 10, np.int64)
    blocks = BlockTable(sizes, sizes, sizes, True, bytes_exact=True)
    cut = WindowCut(blocks_per_window=1)
    return MixedSource("a", blocks, TOKENS, 10, cut, None, False, None, "digest", seq_len)


def windows(seq_len: int | None, first_row: int, count: int) -> list[tuple[int, ...]]:
    found = islice(source(seq_len).windows(first_row), count)
    return [(each.epoch, *each.blocks.tolist(), each.start, each.stop, each.before) for each in found]


def test_a_window_has_the_sequences_that_hold_any_of_its_tokens() -> None:
    # 23 tokens: 5 sequences of 4, and 3 tokens in none
    assert source(4).pass_rows == 5
    assert windows(4, 0, 6) == [
        (0, 10, 0, 2, 0),
        # the block without tokens is in none
        (0, 12, 1, 2, 5),
        (0, 13, 2, 5, 8),
        (0, 14, 4, 5, 17),
        # of its tokens, 18 to 22, the last three come nowhere
        (0, 15, 4, 5, 18),
        (1, 10, 5, 7, 0),
    ]
    assert windows(4, 4, 4) == [(0, 13, 2, 5, 8), (0, 14, 4, 5, 17), (0, 15, 4, 5, 18), (1, 10, 5, 7, 0)]
    assert windows(4, 11, 1) == [(2, 10, 10, 12, 0)]


def test_a_window_of_tokens_that_fill_no_sequence_is_not_read() -> None:
    # 2 sequences of 9, the last five tokens are the last window
    assert [each[1] for each in windows(9, 0, 5)] == [10, 12, 13, 14, 10]
    assert source(9).total_rows is None
    assert mean_window_rows(source(9)) == 0


def test_rows_that_are_no_sequences_lie_one_behind_the_other() -> None:
    assert windows(None, 0, 3) == [(0, 10, 0, 5, 0), (0, 12, 5, 8, 5), (0, 13, 8, 17, 8)]
    assert windows(None, 23, 1) == [(1, 10, 23, 28, 0)]
    # a sequence of one token is a row of one token
    assert windows(1, 0, 9) == windows(None, 0, 9)
