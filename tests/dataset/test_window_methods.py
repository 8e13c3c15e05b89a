"""rewindow, foreach_window and block shuffles of pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import windrow
from windrow.core.errors import PlanError, StateError


def numbers() -> windrow.Dataset:
    return windrow.from_numpy({"x": np.arange(100)}, target_block_bytes=80)


def read(pipe: Any) -> list[int]:
    return [int(x) for batch in pipe.iter_batches(7) for x in batch["x"]]


def test_rewindow_replaces_the_window() -> None:
    pipe = numbers().window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=7)
    expected = numbers().window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=7)
    assert read(pipe.rewindow(blocks_per_window=2)) == read(expected)
    assert read(pipe.rewindow(blocks_per_window=2)) != read(pipe)
    with pytest.raises(PlanError, match="gives both sizes"):
        pipe.rewindow(blocks_per_window=2, bytes_per_window=3)


def test_foreach_window_adds_transforms() -> None:
    pipe = numbers().window(blocks_per_window=3).repeat(1).random_shuffle_each_window(seed=7)
    changed = numbers().filter(pc.field("x") < 30).map(lambda row: {"x": row["x"] + 1})
    expected = changed.window(blocks_per_window=3).repeat(1).random_shuffle_each_window(seed=7)
    found = (
        numbers()
        .window(blocks_per_window=3)
        .foreach_window(lambda rows: rows.filter(pc.field("x") < 30).map(lambda row: {"x": row["x"] + 1}))
    )
    assert read(found.repeat(1).random_shuffle_each_window(seed=7)) == read(expected)
    behind = pipe.foreach_window(lambda rows: rows.map_batches(lambda batch: {"x": batch["x"] * 2}))
    assert read(behind) == [2 * x for x in read(pipe)]
    with pytest.raises(PlanError, match="returned NoneType; return what"):
        pipe.foreach_window(lambda rows: None)
    with pytest.raises(PlanError, match=r"a window has no random_shuffle\(\)"):
        pipe.foreach_window(lambda rows: rows.random_shuffle())


def test_a_block_shuffle_keeps_the_rows_of_a_block_in_order() -> None:
    pipe = numbers().window(blocks_per_window=3).repeat(3).randomize_block_order_each_window(seed=7)
    orders = []
    for epoch in pipe.iter_epochs():
        rows = read(epoch)
        blocks = [rows[at : at + 10] for at in range(0, 100, 10)]
        assert sorted(rows) == list(range(100))
        assert all(block == list(range(block[0], block[0] + 10)) for block in blocks)
        orders.append(tuple(block[0] for block in blocks))
    assert len(set(orders)) == 3
    assert ".randomize_block_order_each_window(seed=7)" in repr(pipe)
    with pytest.raises(PlanError, match=r"keep one randomize_block_order_each_window\(\) call"):
        pipe.random_shuffle_each_window()
    origin = pipe.epoch_lineage(1, 0, 1)[0]
    assert origin.row == orders[1][0]


def test_a_state_of_a_block_shuffle_fits_no_shuffle_of_rows() -> None:
    pipe = numbers().window(blocks_per_window=3).repeat(2)
    with pipe.randomize_block_order_each_window(seed=7).iterator() as shard:
        batches = shard.iter_batches(7)
        next(batches)
        state = shard.state_dict()
        rest = [int(x) for batch in batches for x in batch["x"]]
    with pipe.randomize_block_order_each_window(seed=7).iterator(state_dict=state) as again:
        assert read(again) == rest
    with pytest.raises(StateError, match=r"shuffle of\s+blocks\s+rows"):
        pipe.random_shuffle_each_window(seed=7).iterator(state_dict=state)
