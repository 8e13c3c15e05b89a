"""The contents of states, and errors for states that cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.data import write_numbers
from windrow import DatasetPipeline, Shard, StateError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    for part in range(3):
        write_numbers(path / f"{part}.parquet", 300, start=300 * part)
    return path


def chain(path: Path, *, seed: int | None = 3, **given: Any) -> DatasetPipeline:
    ds = windrow.read_parquet(str(path), target_block_bytes=1, **given)
    return (
        ds.window(blocks_per_window=4)
        .repeat(3)
        .random_shuffle_each_window(seed=seed)
        .options(executor="threads")
    )


def save(pipe: DatasetPipeline, steps: int = 5, batch_size: int = 30) -> dict[str, Any]:
    """The state after some steps."""
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            for _ in epoch.iter_batches(batch_size):
                steps -= 1
                if not steps:
                    return shard.state_dict()
    raise AssertionError("there are fewer steps")


def rest(shard: Shard, batch_size: int = 50) -> list[int]:
    """The remaining rows of all epochs."""
    return [
        int(x)
        for epoch in shard.iter_epochs()
        for batch in epoch.iter_batches(batch_size)
        for x in batch["x"]
    ]


def test_state_is_small_json_with_its_position(folder: Path) -> None:
    state = save(chain(folder))
    text = json.dumps(state)
    assert len(text) < 1024
    assert json.loads(text) == state
    # 150 rows: the first window has 4 blocks of 100 rows each
    place = {name: state[name] for name in ("epoch", "row", "window", "window_row", "shards", "batch_size")}
    assert place == {"epoch": 0, "row": 150, "window": 0, "window_row": 0, "shards": 1, "batch_size": 30}
    assert save(chain(folder), steps=10, batch_size=40)["window"] == 1
    assert save(chain(folder), steps=30)["epoch"] == 1


def test_state_before_the_first_batch_and_after_the_last(folder: Path) -> None:
    pipe = chain(folder)
    everything = rest(pipe.iterator())
    with pipe.iterator() as shard:
        first = shard.state_dict()
        assert (first["epoch"], first["row"], first["batch_size"]) == (0, 0, None)
        batches = shard.iter_batches(30)
        assert shard.state_dict() == first, "an epoch of which nothing was handed out changes no state"
        batches.close()
        # no row of the epoch was delivered, and no other epoch has been requested
        assert (shard.state_dict()["epoch"], shard.state_dict()["row"]) == (0, 0)
        assert rest(shard) == everything[900:]
        last = shard.state_dict()
    assert (last["epoch"], last["row"]) == (3, 0)
    assert rest(pipe.iterator(state_dict=first)) == everything
    with pipe.iterator(state_dict=last) as shard:
        assert rest(shard) == []
        with pytest.raises(windrow.PlanError, match="all 3 epochs"):
            shard.iter_batches(3)


def test_resumed_epoch_reports_its_first_step(folder: Path) -> None:
    pipe = chain(folder)
    with pipe.iterator(state_dict=save(pipe)) as shard:
        batches = shard.iter_batches(30)
        assert (len(batches), batches.start) == (30, 5)
        assert len(list(batches)) == 25
        assert (shard.stats().batches, shard.stats().rows) == (25, 750)


def test_drawn_seed_is_taken_from_the_state(folder: Path) -> None:
    drawn = chain(folder, seed=None)
    state = save(drawn)
    expected = rest(drawn.iterator(state_dict=state))
    assert rest(chain(folder, seed=None).iterator(state_dict=state)) == expected
    # existing shards adopt it too, and share their tasks
    left, right = chain(folder, seed=None).split(2)
    for shard in (left, right):
        shard.load_state_dict(state)
    batches = left.iter_batches(20), right.iter_batches(20)
    found = [int(x) for each in zip(*batches, strict=True) for batch in each for x in batch["x"]]
    assert found == expected[: len(found)]
    # a task of the run can end between two calls
    left_tasks, right_tasks = left.stats().run.tasks, right.stats().run.tasks
    assert left_tasks <= right_tasks <= left.stats().run.tasks
    for shard in (left, right):
        shard.close()
    with pytest.raises(StateError, match=rf"shuffle +seed {state['seed']} +seed 4"):
        chain(folder, seed=4).iterator(state_dict=state)


def test_disagreeing_shards_are_reported(folder: Path) -> None:
    pipe = chain(folder)
    shards = pipe.split(2)
    shards[0].load_state_dict(save(pipe, 2))
    shards[1].load_state_dict(save(pipe, 3))
    shards[0].iter_batches(10)
    with pytest.raises(
        StateError, match=r"shard 1 would go on at row 90 of epoch 0.*from row 60.*merge_state"
    ):
        shards[1].iter_batches(10)
    for shard in shards:
        shard.close()
    drawn = chain(folder, seed=None)
    first, second = drawn.split(2)
    first.iter_batches(10)
    second.load_state_dict(save(chain(folder, seed=None)))
    with pytest.raises(StateError, match="other shards of the same split"):
        second.iter_batches(10)
    first.close()
    second.close()


def test_loading_a_state_during_an_epoch_is_an_error(folder: Path) -> None:
    pipe = chain(folder)
    state = save(pipe)
    with pipe.iterator() as shard:
        batches = shard.iter_batches(30)
        with pytest.raises(StateError, match=r"is being iterated \(epoch 0\)"):
            shard.load_state_dict(state)
        batches.close()
        shard.load_state_dict(state)
        assert len(list(shard.iter_batches(30))) == 25


def test_loaded_state_names_its_shard_assignment(folder: Path) -> None:
    pipe = chain(folder)
    state = save(pipe, 5, 30)
    shards = pipe.split(3)
    for batches in [shard.iter_batches(7) for shard in shards]:
        batches.close()
    for shard in shards:
        shard.load_state_dict(state)
        # the shard's previous batch size does not matter
        assert shard.state_dict() == state
    shards[0].skip_batches(2)
    assert shards[0].state_dict()["row"] == 150 + 2 * 3 * 30
    for shard in shards:
        shard.close()


def test_state_loaded_between_epochs_decides_where_they_continue(folder: Path) -> None:
    pipe = chain(folder)
    state = save(pipe)
    with pipe.iterator() as shard:
        numbers = []
        for epoch in shard.iter_epochs():
            numbers.append(epoch.number)
            if len(numbers) == 1:
                shard.load_state_dict(state)
            else:
                assert sum(len(b["x"]) for b in epoch.iter_batches(30)) == (750 if len(numbers) == 2 else 900)
        assert numbers == [0, 0, 1, 2]


def test_iteration_continues_after_a_transform_error(folder: Path) -> None:
    bad = [True]

    def fail_once(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if bad[0] and (batch["x"] == last).any():
            raise ArithmeticError("once")
        return batch

    expected = rest(chain(folder).iterator())
    last = expected[890]
    pipe = chain(folder).map_batches(fail_once, batch_size=10)
    with pipe.iterator() as shard:
        found: list[int] = []
        batches = shard.iter_batches(20)
        with pytest.raises(windrow.TransformError):
            found.extend(int(x) for batch in batches for x in batch["x"])
        assert shard.state_dict()["row"] == len(found) < 900
        bad[0] = False
        assert found + rest(shard) == expected


REFUSALS: dict[str, Any] = {
    "another window": (
        lambda path: windrow.read_parquet(str(path), target_block_bytes=1).window(blocks_per_window=5),
        r"window +window\(blocks_per_window=4\) +window\(blocks_per_window=5\)",
    ),
    "window in bytes": (
        lambda path: windrow.read_parquet(str(path), target_block_bytes=1).window(bytes_per_window="1GiB"),
        r"window +window\(blocks_per_window=4\) +window\(bytes_per_window=1073741824\)",
    ),
    "other blocks": (
        lambda path: windrow.read_parquet(str(path), target_block_bytes="1KiB").window(blocks_per_window=4),
        r"target_block_bytes +1 B +1\.0 KiB",
    ),
    "a filter": (
        lambda path: windrow.read_parquet(
            str(path), target_block_bytes=1, filter=pc.field("x") + pc.field("y") > 4
        ).window(blocks_per_window=4),
        r"filter +none +[0-9a-f]{8}",
    ),
    "changed rows": (
        lambda path: (
            windrow.read_parquet(str(path), target_block_bytes=1)
            .map_batches(lambda batch: batch, preserves_rows=False)
            .window(blocks_per_window=4)
        ),
        r"change of rows +0 transforms +1 transform",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_state_of_another_pipeline_is_rejected(folder: Path, what: str) -> None:
    make, told = REFUSALS[what]
    other = make(folder).random_shuffle_each_window(seed=3).options(executor="threads")
    with pytest.raises(StateError, match=told):
        other.iterator(state_dict=save(chain(folder)))


def test_states_of_shuffled_and_stored_order_are_not_interchangeable(folder: Path) -> None:
    stored = windrow.read_parquet(str(folder), target_block_bytes=1).window(blocks_per_window=4)
    with pytest.raises(StateError, match=r"shuffle +seed 3 +none"):
        stored.iterator(state_dict=save(chain(folder)))
    with pytest.raises(StateError, match=r"(?s)shuffle +none +seed"):
        chain(folder, seed=None).iterator(state_dict=save(stored))


def test_filters_are_distinguished(folder: Path) -> None:
    def filtered(most: list[int] | int) -> DatasetPipeline:
        given = pc.field("x").isin(most) if isinstance(most, list) else pc.field("x") + pc.field("y") < most
        return chain(folder, filter=given)

    save_first = save(filtered(700))
    assert rest(filtered(700).iterator(state_dict=save_first))
    many = list(range(200))
    for other in (filtered(701), filtered(many)):
        with pytest.raises(StateError, match=r"filter +[0-9a-f]{8} +[0-9a-f]{8}"):
            other.iterator(state_dict=save_first)
    # the text of a filter with many values omits some of them
    with pytest.raises(StateError, match=r"filter +[0-9a-f]{8} +[0-9a-f]{8}"):
        filtered([*many[:100], 500, *many[101:]]).iterator(state_dict=save(filtered(many), 2))


def test_selected_columns_matter_for_windows_sized_in_bytes(folder: Path) -> None:
    def sized(columns: list[str]) -> DatasetPipeline:
        ds = windrow.read_parquet(str(folder), target_block_bytes=1, columns=columns)
        return ds.window(bytes_per_window=3_000).random_shuffle_each_window(seed=1)

    with pytest.raises(StateError, match=r"(?s)selected columns .*select the same columns"):
        sized(["x"]).iterator(state_dict=save(sized(["x", "y"])))
    counted = save(chain(folder, columns=["x", "y"]))
    chain(folder, columns=["x"]).iterator(state_dict=counted)


def _rename(path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(300), "z": np.zeros(300)}), path / "0.parquet")
    for name in ("1.parquet", "2.parquet"):
        (path / name).unlink()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda path: write_numbers(path / "3.parquet", 50),
            r"files +3 +4\n +rows +900 +950\n.*allow_appended=True",
        ),
        (
            lambda path: write_numbers(path / "2.parquet", 300, start=7),
            r"names, sizes, content +[0-9a-f]{8} +[0-9a-f]{8}\nRead the data as it was\.",
        ),
        (lambda path: (path / "2.parquet").unlink(), r"files +3 +2\n +rows +900 +600\n"),
        (_rename, r"columns and types +[0-9a-f]{8} +[0-9a-f]{8}\n +files +3 +1\n"),
    ],
)
def test_other_data_raises_and_names_the_difference(folder: Path, change: Any, told: str) -> None:
    state = save(chain(folder))
    change(folder)
    with pytest.raises(StateError, match=told):
        chain(folder).iterator(state_dict=state)


def test_same_data_at_another_path_resumes(folder: Path, tmp_path: Path) -> None:
    state = save(chain(folder))
    expected = rest(chain(folder).iterator(state_dict=state))
    folder.rename(tmp_path / "moved")
    assert rest(chain(tmp_path / "moved").iterator(state_dict=state)) == expected


def test_appended_data_needs_allow_appended(folder: Path) -> None:
    pipe = chain(folder)
    inside, at_start = save(pipe), save(pipe, 30)
    write_numbers(folder / "3.parquet", 100, start=900)
    with pytest.raises(StateError, match="allow_appended=True at an epoch's start"):
        chain(folder).iterator(state_dict=at_start)
    with pytest.raises(StateError, match=r"the state is at row 150 of epoch 0: load it without"):
        chain(folder).iterator(state_dict=inside, allow_appended=True)
    grown = rest(chain(folder).iterator(state_dict=at_start, allow_appended=True))
    assert sorted(grown[:1000]) == sorted(grown[1000:]) == list(range(1000))
    with chain(folder).iterator() as shard:
        shard.load_state_dict(at_start, allow_appended=True)
        assert rest(shard) == grown
        # later states describe the new data
        assert shard.state_dict()["files"] == 4
    # existing files must be unchanged, and new ones must come last
    write_numbers(folder / "1.parquet", 300, start=4)
    with pytest.raises(StateError, match="Read the data as it was"):
        chain(folder).iterator(state_dict=at_start, allow_appended=True)
    (folder / "1.parquet").unlink()
    with pytest.raises(StateError, match="Read the data as it was"):
        chain(folder).iterator(state_dict=at_start, allow_appended=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: [], r"not a state of windrow: \[\]"),
        (lambda state: {**state, "format": "other"}, "not a state of windrow"),
        (
            lambda state: {"step": 3, "data": state},
            r"not a state of windrow: .* Its 'data' is one: pass that$",
        ),
        (lambda state: {**state, "version": 2}, "format version 2, and this windrow reads version 1"),
        (lambda state: {k: v for k, v in state.items() if k != "row"}, "'row' is missing"),
        (lambda state: {**state, "row": "150"}, "row='150' is not a count"),
        (lambda state: {**state, "row": -150}, "row=-150 is not a count"),
        (lambda state: {**state, "row": 180}, "its checksum does not match"),
        (lambda state: {**state, "more": 1}, "entries that no state has: 'more'"),
        (lambda state: {k: v for k, v in state.items() if k != "check"}, "its checksum does not match"),
        (lambda state: {**state, "filter": None}, "filter=None is not a string"),
    ],
)
def test_corrupt_states_raise(folder: Path, change: Any, told: str) -> None:
    with pytest.raises(StateError, match=told):
        chain(folder).iterator(state_dict=change(save(chain(folder))))


@pytest.mark.parametrize(
    ("steps", "epochs", "where"),
    [(90, 2, "at epoch 3"), (61, 2, "in the middle of epoch 2"), (61, 1, "in the middle")],
)
def test_state_beyond_the_last_epoch_is_rejected(folder: Path, steps: int, epochs: int, where: str) -> None:
    state = save(chain(folder), steps)
    ds = windrow.read_parquet(str(folder), target_block_bytes=1).window(blocks_per_window=4)
    with pytest.raises(StateError, match=rf"{where}.*, but the pipeline has {epochs}: use repeat"):
        ds.repeat(epochs).random_shuffle_each_window(seed=3).iterator(state_dict=state)


def test_state_of_the_end_of_the_last_epoch_is_accepted(folder: Path) -> None:
    """A job that has ended can be started again, and has nothing to do."""
    pipe = windrow.read_parquet(str(folder)).repeat(2).random_shuffle_each_window(seed=3)
    shard = pipe.iterator()
    for epoch in shard.iter_epochs():
        list(epoch.iter_batches(batch_size=7))
    assert not list(pipe.iterator(state_dict=shard.state_dict()).iter_epochs())


@pytest.mark.parametrize("count", [-1, 1.5, None, True])
def test_skip_batches_rejects_invalid_counts(folder: Path, count: Any) -> None:
    with chain(folder).iterator() as shard, pytest.raises(windrow.PlanError, match="skip_batches"):
        shard.skip_batches(count, batch_size=3)


def test_skip_batches_uses_the_last_batch_size(folder: Path) -> None:
    expected = rest(chain(folder).iterator())
    with chain(folder).iterator() as shard:
        with pytest.raises(windrow.PlanError, match="batch_size=None: give the rows"):
            shard.skip_batches(2)
        list(shard.iter_batches(30))
        shard.skip_batches(31)
        assert (shard.state_dict()["epoch"], shard.state_dict()["row"]) == (2, 30)
        assert rest(shard) == expected[1830:]


def test_skip_batches_with_unknown_row_counts(folder: Path) -> None:
    pipe = chain(folder, filter=pc.field("x") + pc.field("y") < 700)
    expected = rest(pipe.iterator())
    with pipe.iterator() as shard:
        shard.skip_batches(10, batch_size=50)
        assert rest(shard) == expected[500:]
    with pipe.iterator() as shard:
        # skipping stops at the end of the epoch
        shard.skip_batches(50, batch_size=50)
        assert rest(shard) == expected[700:]
