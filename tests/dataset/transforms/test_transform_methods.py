"""map, flat_map, filter, columns and samples: their answers, what they refuse, and classes as functions."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.executors.threads import ThreadsExecutor

Rows = list[dict[str, Any]]

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "x": st.integers(-5, 5),
            "y": st.none() | st.floats(allow_nan=False, width=32),
            "t": st.none() | st.text(max_size=3),
        }
    ),
    min_size=1,
    max_size=30,
)
SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.float64()), ("t", pa.string())])


def dataset(rows: Rows) -> windrow.Dataset:
    return windrow.from_arrow(pa.Table.from_pylist(rows, SCHEMA), target_block_bytes=64)


@examples(30)
@given(rows=ROWS)
def test_row_functions_equal_plain_python(rows: Rows) -> None:
    ds = dataset(rows)
    doubled = [{"x": 2 * row["x"], "t": row["t"]} for row in rows]
    assert ds.map(lambda row: {"x": 2 * row["x"], "t": row["t"]}).to_arrow().to_pylist() == doubled
    repeated = [{"n": row["x"]} for row in rows for _ in range(max(0, row["x"]))]
    found = ds.flat_map(lambda row: [{"n": row["x"]}] * max(0, row["x"]))
    assert [{"n": row["n"]} for row in found.to_arrow().to_pylist() if "n" in row] == repeated
    kept = [row for row in rows if row["x"] > 0]
    assert ds.filter(lambda row: row["x"] > 0).to_arrow().to_pylist() == kept
    assert ds.filter(pc.field("x") > 0).to_arrow().to_pylist() == kept
    assert ds.filter(pc.field("x") > 0).count() == len(kept)
    present = [row for row in rows if row["y"] is not None and row["y"] > 0]
    assert ds.filter(pc.field("y") > 0).to_arrow().to_pylist() == present


@examples(30)
@given(rows=ROWS)
def test_columns_equal_plain_python(rows: Rows) -> None:
    ds = dataset(rows)
    assert ds.select_columns(["t", "x"]).to_arrow().to_pylist() == [{"t": r["t"], "x": r["x"]} for r in rows]
    assert ds.drop_columns("x").to_arrow().to_pylist() == [{"y": r["y"], "t": r["t"]} for r in rows]
    renamed = ds.rename_columns({"x": "t", "t": "x"}).to_arrow()
    assert renamed.to_pylist() == [{"t": r["x"], "y": r["y"], "x": r["t"]} for r in rows]
    added = [{**row, "z": row["x"] + 1} for row in rows]
    assert ds.add_column("z", pc.field("x") + 1).to_arrow().to_pylist() == added
    assert ds.add_column("z", lambda batch: batch["x"] + 1).to_arrow().to_pylist() == added
    by_frame = ds.add_column("z", lambda frame: frame["x"] + 1, batch_format="pandas")
    assert by_frame.to_arrow().to_pylist() == added
    assert ds.add_column("x", pc.field("x") * 3).columns() == ["x", "y", "t"]
    assert ds.add_column("z", pc.field("x")).schema().field("t") == SCHEMA.field("t")


def test_tensors_are_arrays_in_rows() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    ds = windrow.from_numpy({"image": images}, target_block_bytes=12)
    assert [row["image"].shape for row in ds.take()] == [(2, 3)] * 4
    turned = ds.map(lambda row: {"image": row["image"].T})
    assert np.array_equal(turned.to_numpy()["image"], images.transpose(0, 2, 1))


def test_functions_get_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    ds = windrow.from_arrow(
        pa.table({"x": [1, 2], "t": ["a", "b"], "v": pa.array([[1.0, 2.0]] * 2, pa.list_(pa.float32(), 2))})
    )

    def double(batch: Any) -> Any:
        assert isinstance(batch["x"], torch.Tensor)
        assert batch["v"].dtype == torch.float32
        assert batch["t"].tolist() == ["a", "b"]
        batch["x"] *= 2
        return {**batch, "sum": batch["v"].sum(dim=1)}

    assert ds.map_batches(double, batch_format="torch").to_arrow().to_pylist() == [
        {"x": 2, "t": "a", "v": [1.0, 2.0], "sum": 3.0},
        {"x": 4, "t": "b", "v": [1.0, 2.0], "sum": 3.0},
    ]


def test_random_sample_is_a_function_of_data_and_seed() -> None:
    ds = windrow.from_numpy({"x": np.arange(20_000)}, target_block_bytes=8_000)
    sample = ds.random_sample(0.25, seed=3)
    found = sample.to_numpy()["x"]
    assert abs(len(found) - 5_000) < 250
    assert np.array_equal(ds.random_sample(0.25, seed=3).to_numpy()["x"], found)
    assert not np.array_equal(ds.random_sample(0.25, seed=4).to_numpy()["x"], found)
    pipe = sample.window(blocks_per_window=4).repeat(2).random_shuffle_each_window(seed=5)
    for epoch in pipe.iter_epochs():
        rows = np.concatenate([batch["x"] for batch in epoch.iter_batches(100)])
        assert np.array_equal(np.sort(rows), found)
    assert ds.random_sample(0, seed=1).count() == 0
    assert ds.random_sample(1, seed=1).count() == 20_000
    assert "seed=" in repr(ds.random_sample(0.5))


def test_a_filter_behind_the_shuffle_is_moved_before_it() -> None:
    pipe = windrow.range(1000).repeat(1).random_shuffle_each_window(seed=7)
    before = windrow.range(1000).filter(pc.field("id") < 10).repeat(1).random_shuffle_each_window(seed=7)
    order = [row["id"] for row in before.iter_rows()]
    assert [row["id"] for row in pipe.filter(pc.field("id") < 10).iter_rows()] == order
    assert [row["id"] for row in pipe.filter(lambda row: row["id"] < 10).iter_rows()] == order
    changed = pipe.map_batches(lambda batch: {"id": batch["id"] * 2})
    with pytest.raises(PlanError, match="comes after random_shuffle_each_window"):
        changed.filter(pc.field("id") < 10)
    with pytest.raises(PlanError, match=r"flat_map\(.*\) comes after"):
        pipe.flat_map(lambda row: [row])


class Counting:
    """Counts its objects, and notices if two threads use one."""

    made = 0
    lock = threading.Lock()

    def __init__(self, factor: int) -> None:
        with Counting.lock:
            Counting.made += 1
        self.factor = factor
        self.busy = threading.Lock()

    def __call__(self, batch: Any, plus: int = 0) -> Any:
        assert self.busy.acquire(blocking=False)
        try:
            return {"x": batch["x"] * self.factor + plus}
        finally:
            self.busy.release()


def test_objects_of_a_class_are_made_once_a_worker() -> None:
    ds = windrow.from_numpy({"x": np.arange(1000)}, target_block_bytes=400)
    Counting.made = 0
    mapped = ds.map_batches(Counting, fn_constructor_args=(3,), fn_kwargs={"plus": 1}, batch_size=7)
    pipe = mapped.window(blocks_per_window=4).repeat(3).random_shuffle_each_window(seed=1)
    executor = ThreadsExecutor(workers=2)
    with pipe.options(executor=executor).iterator() as shard:
        for epoch in shard.iter_epochs():
            rows = np.concatenate([batch["x"] for batch in epoch.iter_batches(100)])
            assert np.array_equal(np.sort(rows), np.arange(1000) * 3 + 1)
    # the schema is found in the thread that asks for it
    assert 1 <= Counting.made <= 3


class Refusing:
    """A class whose objects cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError("weights.pt")

    def __call__(self, batch: Any) -> Any:
        return batch


def _no(row: Any) -> Any:
    return {"x": 1 // (row["x"] - 5)}


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda ds: ds.map(_no), r"map\(_no\), .*row 5 of its batch: ZeroDivisionError"),
        (lambda ds: ds.map(lambda row: 3), "an object of type int; return a row"),
        (lambda ds: ds.map(lambda row: {"a" if row["x"] else "b": 1}), "returned the columns"),
        (lambda ds: ds.map(lambda row: {}), "without columns"),
        (lambda ds: ds.flat_map(lambda row: row), "an object of type dict; return a list of rows"),
        (lambda ds: ds.filter(lambda row: row["x"]), "an object of type int; return True"),
        (lambda ds: ds.map_batches(Refusing), "while making an object of the class: FileNotFoundError"),
        (lambda ds: ds.map_batches(lambda b: b).select_columns(["z"]), "there is no column 'z'"),
        (lambda ds: ds.add_column("z", lambda b: [1]), "columns of unequal length"),
    ],
)
def test_errors_while_reading(build: Any, match: str) -> None:
    ds = windrow.from_numpy({"x": np.arange(10)})
    with pytest.raises(TransformError, match=match):
        build(ds).to_arrow()


@pytest.mark.parametrize(
    ("build", "ending"),
    [
        (lambda ds: ds.map_batches(lambda b: {"y": b["fares"]}), "Did you mean the column 'fare'?"),
        (lambda ds: ds.filter(lambda row: row["FARE"] > 0), "Did you mean the column 'fare'?"),
        (lambda ds: ds.map(lambda row: {"y": {"a": 1}["tips"]}), "Did you mean the column 'tip'?"),
        (lambda ds: ds.map(lambda row: {"y": {"a": 1}["Oslo"]}), "KeyError: 'Oslo'"),
        (lambda ds: ds.map(lambda row: {"y": {1: 1}[row["tip"]]}), "KeyError: 0"),
        # of the function's own dict, by the name of a column that it got
        (lambda ds: ds.map(lambda row: {"y": {"a": 1}["fare"]}), "KeyError: 'fare'"),
    ],
)
def test_unknown_columns_of_functions_are_answered_with_similar_ones(build: Any, ending: str) -> None:
    ds = windrow.from_numpy({"fare": np.arange(10), "tip": np.arange(10)})
    with pytest.raises(TransformError, match=f"{re.escape(ending)}$"):
        build(ds).to_arrow()


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda ds: ds.map(3), "map got 3, which cannot be called"),
        (lambda ds: ds.filter("x > 1"), "give a function, as in filter.*or an expression"),
        (lambda ds: ds.filter(pc.field("z") > 1), "'z'"),
        (lambda ds: ds.add_column("y", pc.field("z") + 1), "add_column has no column 'z'"),
        (lambda ds: ds.filter(pc.field("x")), "not true or false"),
        (lambda ds: ds.filter(pc.field("x") > 1, fn_args=(1,)), "no arguments of a function"),
        (lambda ds: ds.select_columns([]), "must be a list of column names"),
        (lambda ds: ds.select_columns("z"), "select_columns has no column 'z': there are 'x', 'y'"),
        (lambda ds: ds.drop_columns("X"), "drop_columns has no column 'X': did you mean 'x'"),
        (lambda ds: ds.select_columns(["x", "x"]), "'x' is given twice"),
        (lambda ds: ds.drop_columns(["x", "y"]), "would leave no column"),
        (lambda ds: ds.rename_columns({"x": "y"}), "there is a column 'y' already"),
        (lambda ds: ds.rename_columns({}), "give a dict of new names"),
        (lambda ds: ds.random_sample(1.5), "a number from 0 to 1"),
        (lambda ds: ds.map_batches(abs, fn_constructor_args=(1,)), "is not a class"),
        (
            lambda ds: ds.map_batches(abs, compute="gpu"),
            "must be 'tasks', 'actors', 'processes' or a windrow.ActorPool",
        ),
        (lambda ds: ds.map_batches(abs, compute="tasks", num_gpus=1), "leave out num_gpus=1"),
        (lambda ds: ds.map_batches(abs, num_gpus=-1), "num_gpus=-1 must be a number"),
        (lambda ds: ds.map_batches(abs, num_gpus=1.5), "above 1 it must be a whole number"),
        (lambda ds: ds.map_batches(abs, num_cpus=1), "pass compute=windrow.ActorPool"),
        (lambda ds: ds.map_batches(abs, resources={"GPU": 1}), "give num_gpus= instead"),
        (lambda ds: windrow.ActorPool(size=0), "must be an integer of 1 or more"),
        (lambda ds: windrow.ActorPool(min_size=3, max_size=2), "max_size=2 is below min_size=3"),
        (lambda ds: windrow.ActorPool(2, 1), "give size, or the other two"),
    ],
)
def test_errors_of_the_plan(build: Any, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        build(windrow.from_numpy({"x": np.arange(3), "y": np.arange(3)}))


def test_unknown_options_of_a_row_function() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpus'"):
        windrow.range(3).map(abs, gpus=1)  # type: ignore[call-arg]


def test_plans_show_the_calls_as_they_were_written() -> None:
    ds = (
        windrow.range(3)
        .filter(pc.field("id") > 1)
        .drop_columns("id")
        .map_batches(len, rng=True, num_gpus=0.5)
    )
    text = repr(ds)
    assert ".filter((id > 1))" in text
    assert ".drop_columns(['id'])" in text
    assert ".map_batches(len, rng=True, compute=ActorPool(size=1), num_gpus=0.5)" in text


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    pq.write_table(pa.table({"x": np.arange(3000)}), folder / "a.parquet", row_group_size=200)
    return folder


def _draw(batch: Any, rng: windrow.RowGenerator) -> Any:
    return {**batch, "before": rng.random(), "crop": rng.integers(0, 100, size=2)}


def _draw_behind(batch: Any, rng: windrow.RowGenerator) -> Any:
    return {**batch, "behind": rng.random()}


def _drawing(folder: Path) -> windrow.DatasetPipeline:
    ds = windrow.read_parquet(folder, target_block_bytes=1).map_batches(_draw, rng=True)
    pipe = (
        ds.map(lambda row, rng: {**row, "own": rng.random()}, rng=True).window(blocks_per_window=4).repeat(2)
    )
    return pipe.random_shuffle_each_window(seed=7).map_batches(_draw_behind, rng=True)


def _read(batches: Any) -> dict[int, tuple[float, ...]]:
    return {
        int(x): (*numbers, *crop)
        for batch in batches
        for x, crop, *numbers in zip(
            batch["x"], batch["crop"].tolist(), batch["before"], batch["own"], batch["behind"], strict=True
        )
    }


def test_random_numbers_depend_on_seed_epoch_and_row_only(numbers: Path) -> None:
    pipe = _drawing(numbers).options(executor="threads")
    epochs = [_read(epoch.iter_batches(100)) for epoch in pipe.iter_epochs()]
    assert [len(epoch) for epoch in epochs] == [3000, 3000]
    for at in range(3):
        drawn = [[values[at] for values in epoch.values()] for epoch in epochs]
        assert len(np.unique(np.concatenate(drawn))) == 6000
    for n, size in ((3, 7), (2, 64)):
        shards = pipe.split(n)
        for epoch in epochs:
            parts = [_read(shard.iter_batches(size)) for shard in shards]
            assert {key: value for part in parts for key, value in part.items()} == epoch
        for shard in shards:
            shard.close()


def test_what_decides_the_rows_draws_the_same_in_every_epoch(numbers: Path) -> None:
    ds = windrow.read_parquet(numbers, target_block_bytes=1).map_batches(_draw, rng=True)
    kept = ds.filter(pc.field("before") < 0.5)
    pipe = kept.window(blocks_per_window=4).repeat(3).random_shuffle_each_window(seed=7)
    epochs = [
        {int(x): (before, behind) for x, before, behind in _pairs(epoch.iter_batches(100))}
        for epoch in pipe.map_batches(_draw_behind, rng=True).iter_epochs()
    ]
    assert 1300 < len(epochs[0]) < 1700
    assert [{x: drawn[0] for x, drawn in epoch.items()} for epoch in epochs] == [
        {x: drawn[0] for x, drawn in epochs[0].items()}
    ] * 3
    assert len({drawn[1] for epoch in epochs for drawn in epoch.values()}) == 3 * len(epochs[0])


def _pairs(batches: Any) -> Any:
    return (
        row for batch in batches for row in zip(batch["x"], batch["before"], batch["behind"], strict=True)
    )


def test_functions_do_not_change_stored_data() -> None:
    images = np.arange(8.0).reshape(2, 2, 2)
    ds = windrow.from_numpy({"x": np.arange(2.0), "image": images.copy()})

    def spoil(batch: Any) -> Any:
        batch["x"] += 100
        batch["image"][:] = -1
        return batch

    def spoil_row(row: Any) -> Any:
        row["image"][:] = -1
        return row

    pytest.importorskip("torch")
    for changed in (ds.map_batches(spoil, batch_format="torch"), ds.map(spoil_row)):
        assert (changed.to_numpy()["image"] == -1).all()
        assert np.array_equal(ds.to_numpy()["image"], images)
        assert ds.to_numpy()["x"].tolist() == [0, 1]


def test_a_resumed_run_draws_the_same(numbers: Path) -> None:
    pipe = _drawing(numbers).options(executor="threads")
    with pipe.iterator() as shard:
        batches = shard.iter_batches(64)
        first = _read([next(batches) for _ in range(20)])
        state = shard.state_dict()
        expected = _read(batches)
    parts = [_read(shard.iter_batches(10)) for shard in pipe.split(2, state_dict=state)]
    assert {**parts[0], **parts[1]} == expected
    assert not first.keys() & expected.keys()


@pytest.mark.ray
def test_ray_draws_the_same(numbers: Path, ray_local: Any) -> None:
    pipe = _drawing(numbers)
    on_threads = [_read(e.iter_batches(100)) for e in pipe.options(executor="threads").iter_epochs()]
    on_ray = [_read(e.iter_batches(50)) for e in pipe.options(executor="ray").iter_epochs()]
    assert on_ray == on_threads
