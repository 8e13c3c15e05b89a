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
    with pytest.raises(StateError, match=r"order of\s+blocks\s+rows"):
        pipe.random_shuffle_each_window(seed=7).iterator(state_dict=state)


def test_sort_each_window_sorts_like_a_stable_sort_of_each_window() -> None:
    values = np.array([5.0, np.nan, 1.0, 5.0, 2.0, np.nan, 3.0, 1.0])
    ds = windrow.from_items(
        [{"x": None if at == 4 else x, "at": at} for at, x in enumerate(values.tolist())],
        target_block_bytes=32,
    )
    assert ds.num_blocks() == 4
    pipe = ds.window(blocks_per_window=2)
    # NaN after all numbers, nulls last
    assert [row["at"] for row in pipe.sort_each_window("x").iter_rows()] == [2, 0, 3, 1, 7, 6, 5, 4]
    down = pipe.sort_each_window(["x", "at"], descending=[True, True])
    assert [row["at"] for row in down.iter_rows()] == [3, 0, 2, 1, 6, 7, 5, 4]
    assert ".sort_each_window(['x', 'at'], descending=[True, True])" in repr(down)
    assert "sort_each_window('x')" in str(pipe.sort_each_window("x").explain())


def test_equal_keys_of_a_sorted_window_come_in_shuffled_order_and_states_continue_it() -> None:
    ds = numbers().map_batches(lambda batch: {**batch, "even": batch["x"] % 2 == 0})
    shuffled = ds.window(blocks_per_window=5).repeat(2).random_shuffle_each_window(seed=7)
    pipe = shuffled.sort_each_window("even")
    rows = read(shuffled)
    windows = [rows[at : at + 50] for at in range(0, 200, 50)]
    expected = [x for window in windows for x in sorted(window, key=lambda x: x % 2 == 0)]
    assert read(pipe) == expected
    with pipe.iterator() as shard:
        batches = shard.iter_batches(7)
        for _ in range(9):
            next(batches)
        state = shard.state_dict()
    # in two shards, at the same rows of a step
    shards = pipe.split(2, state_dict=state)
    parts = [[batch["x"].tolist() for batch in next(shard.iter_epochs()).iter_batches(1)] for shard in shards]
    for shard in shards:
        shard.close()
    assert [x for step in zip(*parts, strict=False) for batch in step for x in batch] == expected[63:100][:36]
    with pytest.raises(StateError, match=r"order of\s+rows, sort_each_window\('even'\)\s+rows"):
        shuffled.iterator(state_dict=state)
    with pytest.raises(PlanError, match="delivers rows by their values"):
        numbers().window().sort_each_window("x").epoch_lineage(0, 0, 1)


def test_transforms_behind_a_sort_run_behind_it() -> None:
    pipe = numbers().window(blocks_per_window=5).sort_each_window("x", descending=True)
    changed = pipe.map_batches(lambda batch: {"x": -batch["x"]})
    assert (
        read(changed) == [-x for x in read(pipe)] == [-x for at in (49, 99) for x in range(at, at - 50, -1)]
    )


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda pipe: pipe.sort_each_window("y"), "'y'"),
        (lambda pipe: pipe.sort_each_window("x", [True, False]), "one for each key"),
        (lambda pipe: pipe.sort_each_window("x").sort_each_window("x"), "keep one sort_each_window"),
        (
            lambda pipe: pipe.sort_each_window("x").random_shuffle_each_window(),
            "would undo it: shuffle first",
        ),
        (lambda pipe: pipe.sort_each_window("x").filter(lambda row: True), "call it before the shuffle"),
        (lambda pipe: pipe.repeat(2).union(pipe), "repeat differently"),
        (lambda pipe: pipe.union(numbers()), "give it a DatasetPipeline"),
        (lambda pipe: pipe.random_shuffle_each_window().union(pipe), "would undo"),
        (lambda pipe: pipe.repartition_each_window(0), "n=0"),
        (lambda pipe: pipe.repartition_each_window(10**9), "at most 131,072"),
        (lambda pipe: pipe.split_at_indices([3, 1]), "ascending"),
        (lambda pipe: pipe.split_at_indices(5), "ascending"),
        (lambda pipe: pipe.sort_each_window("x", None), "must be True or False"),
        (lambda pipe: type(pipe).from_iterable(numbers()), "got Dataset; give it a list"),
        (lambda pipe: type(pipe).from_iterable([lambda: 1 / 0]), "function 0 failed: ZeroDivisionError"),
        (lambda pipe: pipe.union(windrow.from_items([{"y": 1}]).window()), "'x'"),
        (lambda pipe: pipe.split_at_indices([3])[0].window(), "use rewindow"),
        (lambda pipe: type(pipe).from_iterable([]), "at least one"),
        (lambda pipe: type(pipe).from_iterable([pipe]), "got DatasetPipeline as number 0"),
        (lambda pipe: type(pipe).from_iterable([numbers(), lambda: 3]), "got int as number 1"),
    ],
)
def test_errors(make: Any, match: str) -> None:
    with pytest.raises(windrow.WindrowError, match=match):
        make(numbers().window(blocks_per_window=3))


def test_the_windows_of_a_union_come_in_turns() -> None:
    left, right = numbers().window(blocks_per_window=4), numbers().limit(30).window(blocks_per_window=2)
    pipe = left.repeat(2).union(right.repeat(2), right.repeat(2))
    a, b = list(range(100)), list(range(30))
    turn = a[:40] + b[:20] * 2 + a[40:80] + b[20:] * 2 + a[80:]
    assert read(pipe) == turn * 2
    assert pipe.explain().windows == 7
    assert [dataset.count() for dataset in pipe.iter_datasets()] == [40, 20, 20, 40, 10, 10, 20] * 2


def test_each_dataset_of_an_iterable_stays_a_window() -> None:
    pipe = windrow.DatasetPipeline.from_iterable(
        numbers() if half else numbers().limit(30) for half in (0, 1)
    )
    shuffled = pipe.repeat(2).random_shuffle_each_window(seed=7)
    windows = [sorted(row["x"] for row in dataset.iter_rows()) for dataset in shuffled.iter_datasets()]
    assert windows == [list(range(30)), list(range(100))] * 2
    assert len({tuple(read(epoch)) for epoch in shuffled.iter_epochs()}) == 2
    # blocks stay in their window too
    blocks = read(pipe.randomize_block_order_each_window(seed=7))
    assert sorted(blocks[:30]) == list(range(30))
    assert blocks[:30] != list(range(30))
    with shuffled.iterator() as shard:
        next(shard.iter_batches(7))
        state = shard.state_dict()
    again = windrow.DatasetPipeline.from_iterable([numbers().limit(30), lambda: numbers()]).repeat(2)
    with again.random_shuffle_each_window(seed=7).iterator(state_dict=state) as shard:
        assert read(shard) == read(shuffled)[7:130]
    for other in (
        pipe.rewindow(blocks_per_window=3),
        type(pipe).from_iterable([numbers(), numbers().limit(30)]),
    ):
        with pytest.raises(StateError, match=r"window\s|names, sizes, content|rows\s"):
            other.repeat(2).random_shuffle_each_window(seed=7).iterator(state_dict=state)


def test_repartition_and_split_change_each_window_alone() -> None:
    pipe = numbers().filter(lambda row: row["x"] % 3 > 0).window(blocks_per_window=4)
    kept = [x for x in range(100) if x % 3]
    assert read(pipe.repartition_each_window(7)) == kept
    sizes: list[int] = []

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["x"]))
        return batch

    assert read(pipe.repartition_each_window(4).map_batches(note)) == kept
    # windows of 26, 27 and 13 rows
    assert sorted(sizes) == sorted([6, 7, 6, 7, 6, 7, 7, 7, 3, 3, 3, 4])
    head, middle, tail = pipe.split_at_indices([5, 20])
    windows = [kept[:26], kept[26:53], kept[53:]]
    assert read(head) == [x for window in windows for x in window[:5]]
    assert read(middle) == [x for window in windows for x in window[5:20]]
    assert [dataset.count() for dataset in tail.iter_datasets()] == [6, 7]
    assert tail.explain().windows == 2


def test_a_state_belongs_to_its_windows() -> None:
    def pipe(blocks: int) -> windrow.DatasetPipeline:
        return numbers().window(blocks_per_window=blocks).repartition_each_window(3)

    with pipe(4).iterator() as shard:
        next(shard.iter_batches(7))
        state = shard.state_dict()
    with pipe(4).iterator(state_dict=state) as shard:
        assert read(shard) == list(range(7, 100))
    with pytest.raises(StateError, match="names, sizes, content"):
        pipe(2).iterator(state_dict=state)


def test_iter_datasets_yields_windows_as_they_are_delivered() -> None:
    pipe = numbers().window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=7)
    dropped = numbers().filter(lambda row: row["x"] % 3 > 0).window(blocks_per_window=3).repeat(2)
    for each in (pipe, dropped.random_shuffle_each_window(seed=7), dropped):
        datasets = list(each.iter_datasets())
        assert [row["x"] for dataset in datasets for row in dataset.iter_rows()] == read(each)
        assert len(datasets) == 8
    with pytest.raises(PlanError, match="sequences go over windows"):
        windrow.from_items([{"t": [1, 2]}]).window().pack(2, "t").iter_datasets()
