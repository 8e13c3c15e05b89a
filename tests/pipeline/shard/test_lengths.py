"""The number of steps of an epoch: exact as soon as its rows are counted, and before that an error that says why."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.core.errors import PlanError
from windrow.dataset.dataset import DatasetPipeline

# rows are counted while it is set
COUNTING = threading.Event()


def keep_odd(batch: pa.Table) -> pa.Table:
    assert COUNTING.wait(60)
    return batch.filter(pc.field("odd") == 1)


@pytest.fixture
def filtered(tmp_path: Any) -> DatasetPipeline:
    """100 rows in five windows, of which a filter keeps 50; nothing of an epoch is read before it begins."""
    COUNTING.set()
    path = str(tmp_path / "numbers.parquet")
    numbers = range(100)
    pq.write_table(
        pa.table({"x": numbers, "odd": [number % 2 for number in numbers]}), path, row_group_size=10
    )
    kept = windrow.read_parquet(path).map_batches(keep_odd, batch_format="pyarrow", preserves_rows=False)
    pipe = kept.window(blocks_per_window=2).repeat(3).random_shuffle_each_window(seed=7)
    return pipe.options(executor="threads", progress=False, prefetch_windows=0)


def save_after(pipe: DatasetPipeline, steps: int) -> dict[str, Any]:
    """The state after some steps of four rows, of an epoch whose rows are not counted."""
    with pipe.iterator() as shard:
        batches = shard.iter_batches(batch_size=4)
        for _ in range(steps):
            next(batches)
        return shard.state_dict()


def test_the_length_is_known_once_the_rows_are_counted(filtered: DatasetPipeline) -> None:
    with filtered.iterator() as shard:
        COUNTING.clear()
        batches = shard.iter_batches(batch_size=4)
        with pytest.raises(TypeError, match="because a filter, a row-changing transform"):
            len(batches)
        COUNTING.set()
        assert sum(1 for _ in batches) == len(batches) == 13


@pytest.mark.parametrize(("batch_size", "steps"), [(4, 13), (5, 10)])
def test_a_resumed_epoch_knows_its_length_once_the_rest_is_counted(
    filtered: DatasetPipeline, batch_size: int, steps: int
) -> None:
    with filtered.iterator() as shard:
        shard.load_state_dict(save_after(filtered, 9))
        COUNTING.clear()
        batches = shard.iter_batches(batch_size=batch_size)
        with pytest.raises(TypeError, match="is not known yet"):
            len(batches)
        COUNTING.set()
        assert batches.start + sum(1 for _ in batches) == len(batches) == steps
        # windows before the state have not been read, but the state has counted their rows
        assert shard.steps_per_epoch(batch_size) == len(shard.iter_batches(batch_size=batch_size)) == steps


def test_a_later_epoch_may_skip_blocks_that_a_state_has_counted(filtered: DatasetPipeline) -> None:
    pipe = filtered.options(on_error="skip")
    with pipe.iterator() as shard:
        shard.load_state_dict(save_after(pipe, 9))
        batches = shard.iter_batches(batch_size=4)
        assert batches.start + sum(1 for _ in batches) == len(batches) == 13
        with pytest.raises(PlanError, match="is not known yet"):
            shard.steps_per_epoch(4)
        COUNTING.clear()
        batches = shard.iter_batches(batch_size=4)
        with pytest.raises(TypeError, match="is not known yet"):
            len(batches)
        COUNTING.set()
        assert sum(1 for _ in batches) == len(batches) == len(shard.iter_batches(batch_size=4)) == 13
