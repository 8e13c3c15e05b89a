"""Exchanges: laziness, bounded memory, many partitions, resume, pickles, temporary files, and Ray."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.dataset.example_sources import TableReader, TableSource
from windrow.core.errors import PlanError, SourceError, StateError, TransformError
from windrow.core.source import BlockAddress
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.exchange import exchange as exchange_module
from windrow.pipeline.executors.threads import ThreadsExecutor

ROWS = 6_000


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every few rows a task of their own."""
    monkeypatch.setattr(exchange_module, "_TASK_BYTES", 8_000)


def _table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    text = [f"name-{i % 101}" for i in range(rows)]
    return pa.table({"row": np.arange(rows), "x": generator.integers(0, 500, rows), "text": text})


def _dataset(table: pa.Table, block_bytes: int = 4_000) -> windrow.Dataset:
    return windrow.from_arrow(table, target_block_bytes=block_bytes).options(progress=False)


OPERATIONS: dict[str, Any] = {
    "sort": lambda ds: ds.sort(["x", "text"], [True, False], target_block_bytes=20_000),
    "random_shuffle": lambda ds: ds.random_shuffle(seed=3, target_block_bytes=20_000),
    "repartition": lambda ds: ds.repartition(5, by="text"),
    "groupby": lambda ds: ds.groupby("x", target_block_bytes=9_000).aggregate(m=("row", "mean"), n="count"),
    "distinct": lambda ds: ds.distinct(["x", "text"], target_block_bytes=20_000),
    "map_groups": lambda ds: ds.groupby("text").map_groups(
        lambda group: {"text": group["text"][:1], "x": [int(group["x"].sum())]}
    ),
    "nested": lambda ds: ds.sort("x").limit(4_000).zip(ds.limit(4_000)).random_shuffle(seed=1),
}


@dataclass
class _CountingReader(TableReader):
    """Makes each block when it is read, and counts those that are alive."""

    alive: int = 0
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def read(self, address: BlockAddress) -> pa.Table:
        values = np.full(20_000, address.locator) + np.arange(20_000)
        with self.lock:
            self.alive += 1
            self.most = max(self.most, self.alive)
        weakref.finalize(values, self._note_end)
        return pa.table({"x": values})

    def _note_end(self) -> None:
        with self.lock:
            self.alive -= 1


@pytest.mark.usefixtures("small_tasks")
def test_as_many_blocks_are_held_as_there_are_workers() -> None:
    reader = _CountingReader(tuple(pa.table({"x": np.zeros(20_000, np.int64)}) for _ in range(40)))
    ds = windrow.Dataset(LogicalPlan(TableSource(reader))).options(executor=ThreadsExecutor(2))
    ordered = ds.sort("x", target_block_bytes=200_000)
    assert ordered.num_blocks() == 32
    source = ordered._plan.source
    source.prepare()  # type: ignore[attr-defined]
    gc.collect()
    assert reader.most <= 2
    assert reader.alive == 0
    sizes = [source.reader.read(address).nbytes for address in source.addresses(range(32))]
    assert sum(sizes) == 40 * 160_000
    assert max(sizes) < 2 * 200_000
    # nothing was read a second time
    assert reader.alive == 0


@pytest.mark.parametrize("name", ["sort", "random_shuffle", "groupby", "distinct"])
def test_nothing_is_read_before_rows_are_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    run = exchange_module.Exchange._run

    def note(exchange: exchange_module.Exchange) -> Any:
        runs.append("ran")
        return run(exchange)

    monkeypatch.setattr(exchange_module.Exchange, "_run", note)
    ds = OPERATIONS[name](_dataset(_table()).options(executor="threads"))
    pipe = ds.window(blocks_per_window=2).repeat(3).random_shuffle_each_window(seed=1)
    ds.schema()
    assert "spills about" in str(pipe.explain(2, batch_size=10))
    assert f".{name}(" in repr(pipe)
    shards = pipe.split(2)
    assert not runs
    assert len(shards) == 2
    rows = [*ds.iter_rows(), *ds.iter_rows()]
    assert len(rows) == 2 * ds.count()
    assert runs == ["ran"]


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_workers_do_not_change_the_result(name: str, workers: int) -> None:
    ds = _dataset(_table())
    found = OPERATIONS[name](ds.options(executor=ThreadsExecutor(workers))).to_arrow()
    assert found.equals(OPERATIONS[name](ds.options(executor="threads")).to_arrow())


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("name", ["sort", "distinct"])
def test_windows_epochs_and_resume(name: str) -> None:
    def pipe(table: pa.Table) -> windrow.DatasetPipeline:
        ds = _dataset(table).options(executor="threads")
        if name == "distinct":
            # of two copies of each row, one is left
            return _windowed(ds.union(ds).distinct(["row", "text"], target_block_bytes=20_000))
        return _windowed(ds.sort("x", target_block_bytes=20_000))

    def _windowed(ordered: windrow.Dataset) -> windrow.DatasetPipeline:
        return ordered.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=7)

    whole = [
        [row for batch in epoch.iter_batches(100) for row in batch["row"].tolist()]
        for epoch in pipe(_table()).iter_epochs()
    ]
    assert [sorted(rows) for rows in whole] == [list(range(ROWS))] * 2
    assert whole[0] != whole[1]
    taken: list[int] = []
    with pipe(_table()).iterator() as shard:
        for step, batch in enumerate(next(shard.iter_epochs()).iter_batches(100)):
            taken += batch["row"].tolist()
            if step == 21:
                state = shard.state_dict()
                break
    # a new dataset, as in a new process, runs the sort again
    with pipe(_table()).iterator(state_dict=state) as shard:
        rest = [row for e in shard.iter_epochs() for b in e.iter_batches(100) for row in b["row"].tolist()]
    assert taken + rest == whole[0] + whole[1]
    with pytest.raises(StateError, match="content"):
        pipe(_table(seed=1)).iterator(state_dict=state)


def test_pickled_before_and_after() -> None:
    ds = _dataset(_table()).options(executor="threads").sort("x", target_block_bytes=20_000)
    copies = [pickle.loads(pickle.dumps(ds))]
    expected = ds.to_arrow()
    copies.append(pickle.loads(pickle.dumps(ds)))
    assert all(copy.to_arrow().equals(expected) for copy in copies)


def test_files_end_with_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ds = _dataset(_table()).options(executor="threads").sort("x")
    ds.take(1)
    assert list(tmp_path.glob("*/task-*.arrow"))
    del ds
    gc.collect()
    assert not list(tmp_path.iterdir())
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr("tempfile.tempdir", str(file))
    with pytest.raises(SourceError, match="TMPDIR"):
        _dataset(_table()).options(executor="threads").sort("x").take(1)


def test_writing_does_not_replace_what_is_sorted(tmp_path: Path) -> None:
    _dataset(_table()).options(executor="threads").write_parquet(tmp_path / "in")
    ds = windrow.read_parquet(tmp_path / "in").options(executor="threads")
    ds.sort("x").write_parquet(tmp_path / "out")
    found = windrow.read_parquet(tmp_path / "out").to_arrow()
    assert found["x"].to_pylist() == sorted(_table()["x"].to_pylist())
    with pytest.raises(windrow.WindrowError, match="overwrite"):
        ds.sort("x").write_parquet(tmp_path / "in", mode="overwrite")


def _fail(batch: Any) -> Any:
    if batch["row"].max() > ROWS // 2:
        raise ValueError("no such row")
    return batch


@pytest.mark.ray_at_night
@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("executor", ["threads", "ray"])
def test_errors_of_transforms_end_the_exchange(executor: str, request: pytest.FixtureRequest) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    ds = _dataset(_table()).options(executor=executor).map_batches(_fail)
    with pytest.raises(TransformError, match=r"map_batches\(_fail\).*no such row") as caught:
        ds.sort("x", target_block_bytes=20_000).take(1)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("random_shuffle", "nested") else pytest.mark.nightly)
        for name in OPERATIONS
    ],
)
def test_ray_makes_the_same_rows(name: str, ray_local: Any) -> None:
    ds = _dataset(_table())
    found = OPERATIONS[name](ds.options(executor="ray")).to_arrow()
    assert found.equals(OPERATIONS[name](ds.options(executor="threads")).to_arrow())


@pytest.mark.usefixtures("small_tasks")
def test_ray_shards_share_one_exchange(ray_local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from windrow.pipeline.exchange import spilled_objects

    # several partitions in each object
    monkeypatch.setattr(spilled_objects, "_MAX_OBJECTS", 60)

    def pipe(executor: str) -> windrow.DatasetPipeline:
        ds = _dataset(_table()).options(executor=executor).sort("x", target_block_bytes=20_000)
        return ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=7)

    def read(shards: list[windrow.Shard]) -> Iterator[list[int]]:
        for batches in zip(*(shard.iter_batches(100) for shard in shards), strict=False):
            yield [row for batch in batches for row in batch["row"].tolist()]

    found = list(read(pipe("ray").split(2, equal=True)))
    assert found == list(read(pipe("threads").split(2, equal=True)))


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.nightly
def test_ray_restarts_the_coordinator_of_an_exchange(ray_local: Any) -> None:
    ds = _dataset(_table()).options(executor="ray").sort("x", target_block_bytes=20_000)
    with ds.window(blocks_per_window=3).repeat(1).iterator() as shard:
        batches = shard.iter_batches(100)
        found = [next(batches)["x"]]
        session: Any = shard._session
        ray_local.kill(session._coordinator, no_restart=False)
        found.extend(batch["x"] for batch in batches)
    assert np.concatenate(found).tolist() == sorted(_table()["x"].to_pylist())


def test_ray_rows_outlive_the_workers_that_made_them(ray_local: Any) -> None:
    import os
    import signal

    def note(batch: Any) -> Any:
        return {**batch, "pid": np.full(len(batch["row"]), os.getpid())}

    ds = _dataset(_table()).options(executor="ray").map_batches(note).sort("x")
    ds._plan.source.prepare()  # type: ignore[attr-defined]
    found = ds.to_arrow()
    for pid in set(found["pid"].to_pylist()) - {os.getpid()}:
        os.kill(pid, signal.SIGKILL)
    assert ds.to_arrow()["x"].equals(found["x"])


@pytest.mark.parametrize("call", [lambda ds: ds.sort("tag"), lambda ds: ds.random_shuffle(seed=1)])
def test_dictionaries_with_more_values_than_their_indices_can_number_are_named(call: Any) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    halves = [pa.table({"tag": pa.array([f"{half}{i}" for i in range(100)], kind)}) for half in "ab"]
    ds = windrow.from_arrow(pa.concat_tables(halves)).options(executor="threads")
    with pytest.raises(PlanError, match=r"'tag'.*more different values than int8 indices"):
        call(ds).to_arrow()
