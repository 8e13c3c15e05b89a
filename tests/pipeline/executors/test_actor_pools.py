"""Transforms on pools of actors: whole answers, one object an actor, growth, errors and dying processes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.end_to_end.reading import eventually
from tests.io.files import write
from windrow.core.errors import TransformError

pool_calls: Any = pytest.importorskip("windrow.pipeline.executors.ray.pool_calls")

pytestmark = pytest.mark.ray

ROWS, BLOCKS = 600, 6


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    rows = ROWS // BLOCKS
    for at in range(BLOCKS):
        write(tmp_path / "in" / f"{at}.parquet", pa.table({"x": np.arange(at * rows, (at + 1) * rows)}))
    return tmp_path / "in"


@pytest.fixture(autouse=True)
def _ends_its_actors(ray_local: Any) -> Iterator[None]:
    yield
    assert eventually(lambda: not _alive()), f"actors are left: {_alive()}"


def _alive(*names: str) -> list[Any]:
    """The actors of these classes that have not ended; without names, those that belong to pools."""
    from ray._private.state import actors

    wanted = names or ("_Worker", "PoolManager")
    return [one for one in actors().values() if one["State"] != "DEAD" and one["ActorClassName"] in wanted]


class Model:
    """Adds a column with its process."""

    def __init__(self, factor: int, pause: float = 0.0, meets: Path | None = None) -> None:
        self.factor, self.pause = factor, pause
        self.meets = meets
        self.calls = 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        time.sleep(self.pause)
        folder = self.meets
        if folder is not None and batch["x"][0] >= ROWS // 2:
            # until a second actor has work too, however late it starts; the schema is found by one actor
            (folder / str(os.getpid())).touch()
            assert eventually(lambda: len(list(folder.iterdir())) > 1, 60)
        pid = np.full(len(batch["x"]), os.getpid())
        return {"x": batch["x"] * self.factor, "pid": pid, "calls": np.full(len(pid), self.calls)}


@pytest.mark.nightly
def test_every_row_passes_through_the_pool_in_order(numbers: Path, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    ds = windrow.read_parquet(numbers).map_batches(
        Model, fn_constructor_args=(3, 0.0, meeting), batch_size=10, compute=windrow.ActorPool(size=2)
    )
    ds.options(executor="ray").write_parquet(tmp_path / "out")
    found = windrow.read_parquet(tmp_path / "out").to_arrow()
    assert found["x"].to_pylist() == [3 * x for x in range(ROWS)]
    pids = set(found["pid"].to_pylist())
    assert len(pids) == 2
    assert os.getpid() not in pids
    # each actor keeps its object from block to block
    assert max(found["calls"].to_pylist()) > ROWS // BLOCKS // 10


class Elsewhere(Model):
    """Can be made in other processes only, as a model that needs more memory than this one has."""

    def __init__(self, pid: int) -> None:
        super().__init__(2)
        assert os.getpid() != pid


@pytest.mark.nightly
@pytest.mark.parametrize("windows", [False, True])
def test_a_write_makes_no_object_in_its_own_process(numbers: Path, tmp_path: Path, windows: bool) -> None:
    scored = windrow.read_parquet(numbers).map_batches(
        Elsewhere, fn_constructor_args=(os.getpid(),), compute="actors", num_cpus=0.5
    )
    ds = scored.options(executor="ray").drop_columns(["pid", "calls"])
    written = (ds.window(blocks_per_window=2) if windows else ds).write_json(tmp_path / "out")
    assert written.rows == ROWS
    assert windrow.read_json(tmp_path / "out").to_arrow()["x"].to_pylist() == [2 * x for x in range(ROWS)]


def test_a_pipeline_reads_through_a_pool(numbers: Path) -> None:
    ds = windrow.read_parquet(numbers).map_batches(
        Model, fn_constructor_args=(2,), compute="actors", num_cpus=0.5
    )
    pipe = ds.map(lambda row: {"x": row["x"] + 1, "pid": row["pid"]})
    shuffled = pipe.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=7)
    expected = [
        [row["x"] * 2 + 1 for row in epoch.iter_rows()]
        for epoch in windrow.read_parquet(numbers)
        .window(blocks_per_window=2)
        .repeat(2)
        .random_shuffle_each_window(seed=7)
        .iter_epochs()
    ]
    found, pids = [], set()
    for epoch in shuffled.options(executor="ray").iter_epochs():
        rows = list(epoch.iter_rows())
        found.append([row["x"] for row in rows])
        pids |= {row["pid"] for row in rows}
    assert found == expected
    assert len(pids) == 1


@pytest.mark.nightly
def test_a_busy_pool_grows(numbers: Path) -> None:
    ds = windrow.read_parquet(numbers).map_batches(
        Model,
        fn_constructor_args=(1, 0.1),
        batch_size=10,
        compute=windrow.ActorPool(min_size=1, max_size=3),
        num_cpus=0.1,
    )
    with ds.repeat(1).options(executor="ray").iterator() as shard:
        pids = {pid for batch in shard.iter_batches(100) for pid in batch["pid"].tolist()}
    assert len(pids) in (2, 3)


class Dying(Model):
    """Kills its process at a batch, the first time, or each time; cannot be made in a process that reads or writes."""

    def __init__(self, marker: Path, always: bool, pid: int) -> None:
        super().__init__(1)
        assert os.getpid() != pid
        self.marker, self.always = marker, always

    def __call__(self, batch: Any) -> Any:
        if 300 in batch["x"] and (self.always or not self.marker.exists()):
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


@pytest.mark.nightly
def test_the_batches_of_a_dead_actor_are_made_again(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).map_batches(
        Dying,
        fn_constructor_args=(tmp_path / "died", False, os.getpid()),
        batch_size=20,
        compute="actors",
        num_cpus=0.5,
    )
    ds.options(executor="ray").write_parquet(tmp_path / "out")
    assert windrow.read_parquet(tmp_path / "out").to_arrow()["x"].to_pylist() == list(range(ROWS))
    assert (tmp_path / "died").exists()


@pytest.mark.nightly
def test_a_batch_that_kills_every_actor_is_an_error(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).map_batches(
        Dying,
        fn_constructor_args=(tmp_path / "died", True, os.getpid()),
        batch_size=20,
        compute="actors",
        num_cpus=0.5,
    )
    with pytest.raises(TransformError, match=r"3\.parquet.*the actor's process died repeatedly"):
        ds.options(executor="ray").write_parquet(tmp_path / "out")


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_batches_that_wait_behind_one_that_kills_every_actor_are_kept(
    numbers: Path, tmp_path: Path, size: int
) -> None:
    ds = windrow.read_parquet(numbers).map_batches(
        Dying,
        fn_constructor_args=(tmp_path / "died", True, os.getpid()),
        batch_size=20,
        compute=windrow.ActorPool(size=size),
        num_cpus=0.2,
    )
    with pytest.warns(RuntimeWarning, match="failed for 20 rows"):
        ds.options(executor="ray").write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    failed = windrow.read_parquet(tmp_path / "failed").to_arrow()
    assert failed["x"].to_pylist() == list(range(300, 320))
    kept = windrow.read_parquet(tmp_path / "out").to_arrow()["x"].to_pylist()
    assert kept == [*range(300), *range(320, ROWS)]


class Unmakable:
    """A class whose objects cannot be made on an actor."""

    def __init__(self) -> None:
        raise FileNotFoundError("weights.pt")

    def __call__(self, batch: Any) -> Any:
        return batch


def _fail(batch: Any) -> Any:
    if 250 in batch["x"]:
        raise ZeroDivisionError("at 250")
    return batch


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        pytest.param(
            Unmakable,
            "while making an object of the class: FileNotFoundError: weights.pt",
            marks=pytest.mark.nightly,
        ),
        (_fail, r"map_batches\(_fail\), .*2\.parquet.*ZeroDivisionError: at 250"),
    ],
)
def test_errors_of_functions_on_actors(numbers: Path, fn: Any, match: str) -> None:
    pipe = windrow.read_parquet(numbers).map_batches(fn, compute="actors", num_cpus=0.5).repeat(1)
    with (
        pytest.raises(TransformError, match=match) as raised,
        pipe.options(executor="ray").iterator() as shard,
    ):
        list(shard.iter_batches())
    assert isinstance(raised.value.__cause__, (FileNotFoundError, ZeroDivisionError))


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_what_no_node_has_is_named(numbers: Path, after: bool) -> None:
    pipe: Any = windrow.read_parquet(numbers)
    pipe = pipe.repeat(1).random_shuffle_each_window(seed=7) if after else pipe
    pipe = pipe.map_batches(_fail, compute=windrow.ActorPool(size=1), num_gpus=1)
    pipe = pipe if after else pipe.repeat(1)
    warned = pytest.warns(RuntimeWarning, match=r"needs \{GPU: 1\}, and no node of the cluster has that")
    with warned, pipe.options(executor="ray").iterator() as shard:
        shard.iter_batches().close()


def test_a_pool_that_started_long_ago_takes_batches() -> None:
    from windrow.pipeline.executors.ray.pools import PoolManager, _Member

    class Handle:
        """Stands in for an actor: its only method answers at once."""

        def __init__(self) -> None:
            self.run = self

        def remote(self, batch: Any) -> tuple[Any, str]:
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done, f"result of {batch}"

    async def submit() -> Any:
        manager = PoolManager(b"", "map(f)", (1, 1), {})
        manager._ticking, manager._begun = True, -1e9
        manager._members.append(_Member(Handle(), started=True))
        manager._first_started.set()
        return await manager.submit(["batch"], alone=False)

    assert asyncio.run(submit()) == ["result of batch"]


@pytest.mark.parametrize("dies", [False, True])
def test_a_batch_that_is_sent_alone_shares_its_actor_with_no_other(dies: bool) -> None:
    from windrow.pipeline.executors.ray.pools import PoolManager, _Member

    class Handle:
        """Stands in for an actor: its only method ends once the test ends it."""

        def __init__(self) -> None:
            self.run = self
            self.batches: list[str] = []
            self.retries: list[int] = []
            self.ends: list[Any] = []

        def options(self, max_task_retries: int) -> Any:
            self.retries.append(max_task_retries)
            return self

        def remote(self, batch: Any) -> tuple[Any, str]:
            self.batches.append(batch)
            self.ends.append(asyncio.get_running_loop().create_future())
            return self.ends[-1], f"result of {batch}"

    async def submit() -> None:
        manager = PoolManager(b"", "map(f)", (1, 2), {})
        manager._ticking = True
        one, other = Handle(), Handle()
        manager._members.extend(_Member(each, started=True) for each in (one, other))
        manager._first_started.set()
        for batch in ("a", "b"):
            await manager.submit([batch], alone=False)
        alone = asyncio.create_task(manager.submit(["c"], alone=True))
        await asyncio.sleep(0.1)
        await manager.submit(["d"], alone=False)
        assert not alone.done()
        assert (one.batches, other.batches) == (["a"], ["b", "d"])
        if dies:
            # of its batch: the other one is the next that is waited for
            one.ends[0].set_exception(pool_calls.ray.exceptions.ActorDiedError())
            await asyncio.sleep(0.1)
            for end in other.ends:
                end.set_result(None)
        else:
            one.ends[0].set_result(None)
        assert await asyncio.wait_for(alone, 10) == ["result of c"]
        last = other if dies else one
        assert (last.batches[-1], last.retries) == ("c", [1])
        if dies:
            later = asyncio.create_task(manager.submit(["e"], alone=False))
            await asyncio.sleep(0.2)
            assert not later.done(), "an actor got another batch beside one that it has for itself"
            last.ends[-1].set_result(None)
            assert await asyncio.wait_for(later, 10) == ["result of e"]
        else:
            await manager.submit(["e"], alone=False)
            assert other.batches[-1] == "e"
            last.ends[-1].set_result(None)
            await asyncio.sleep(0.1)
            await manager.submit(["f"], alone=False)
            assert one.batches[-1] == "f"

    asyncio.run(submit())


@pytest.mark.parametrize("alone", [False, True])
def test_a_pool_whose_only_actor_is_taken_grows(monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    from windrow.pipeline.executors.ray.pools import PoolManager, _Member

    async def submit() -> int:
        manager = PoolManager(b"", "map(f)", (1, 2), {})
        manager._ticking = True
        manager._members.append(_Member(None, calls=1, started=True, reserved=not alone))
        manager._first_started.set()
        monkeypatch.setattr(manager, "_add", lambda: manager._members.append(_Member(None, started=False)))
        submitted = asyncio.create_task(manager.submit(["a"], alone=alone))
        await asyncio.sleep(0.2)
        submitted.cancel()
        return len(manager._members)

    assert asyncio.run(submit()) == 2


@pytest.mark.nightly
def test_a_killed_manager_loses_nothing(numbers: Path, tmp_path: Path) -> None:
    from ray._private.state import actors

    def kill() -> None:
        def pids() -> list[int]:
            found = [one for one in actors().values() if one["ActorClassName"] == "PoolManager"]
            return [one["Pid"] for one in found if one["State"] == "ALIVE" and one["Pid"]]

        assert eventually(lambda: bool(pids()))
        time.sleep(2)
        for pid in pids():
            os.kill(pid, signal.SIGKILL)

    ds = windrow.read_parquet(numbers).map_batches(
        Model, fn_constructor_args=(1, 0.2), batch_size=10, compute=windrow.ActorPool(size=2), num_cpus=0.5
    )
    with ThreadPoolExecutor(1) as thread:
        # the schema is found on actors too, before those of the write start
        killed = thread.submit(kill)
        ds.options(executor="ray").write_parquet(tmp_path / "out")
        killed.result(60)
    assert windrow.read_parquet(tmp_path / "out").to_arrow()["x"].to_pylist() == list(range(ROWS))


def shuffled(numbers: Path, epochs: int = 2) -> windrow.DatasetPipeline:
    pipe = windrow.read_parquet(numbers).window(blocks_per_window=2).repeat(epochs)
    return pipe.random_shuffle_each_window(seed=7).options(executor="ray")


def add_noise(batch: Any, rng: Any) -> Any:
    return {"x": batch["x"], "noise": rng.normal(), "pid": np.full(len(batch["x"]), os.getpid())}


def read_shards(pipe: windrow.DatasetPipeline, shards: int) -> list[list[dict[str, Any]]]:
    """The batches of each shard, which threads read at the same time."""

    def read(shard: windrow.Shard) -> list[dict[str, Any]]:
        return [batch for epoch in shard.iter_epochs() for batch in epoch.iter_batches(10)]

    with ThreadPoolExecutor(shards) as threads:
        return list(threads.map(read, pipe.split(shards)))


@pytest.mark.parametrize("compute", ["processes", windrow.ActorPool(2)])
def test_shuffled_rows_pass_through_a_pool_in_order(
    numbers: Path, compute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, note = list[int](), pool_calls._Pace.note

    def record(pace: Any, answers: Any) -> None:
        together.append(len(answers.results))
        note(pace, answers)

    monkeypatch.setattr(pool_calls._Pace, "note", record)
    pipe = shuffled(numbers)
    cpus = None if compute == "processes" else 0.3
    expected = read_shards(pipe.options(executor="threads").map_batches(add_noise, batch_size=2, rng=True), 2)
    found = read_shards(
        pipe.map_batches(add_noise, batch_size=2, rng=True, compute=compute, num_cpus=cpus), 2
    )
    assert max(together) > 1
    for one, other in zip(expected, found, strict=True):
        assert [batch["x"].tolist() for batch in one] == [batch["x"].tolist() for batch in other]
        assert [batch["noise"].tolist() for batch in one] == [batch["noise"].tolist() for batch in other]
    pids = {pid for batches in found for batch in batches for pid in batch["pid"].tolist()}
    assert os.getpid() not in pids
    assert len(pids) <= 2


def _refuse_some(batch: Any) -> Any:
    if 0 in batch["x"] % 50:
        raise ValueError("every 25th batch")
    return batch


def test_batches_that_fail_are_put_aside_one_by_one(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).map_batches(_refuse_some, batch_size=2, compute="actors", num_cpus=0.3)
    with pytest.warns(RuntimeWarning, match="failed for 24 rows"):
        ds.options(executor="ray").write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    left_out = [at for at in range(ROWS) if at % 50 in (0, 1)]
    assert windrow.read_parquet(tmp_path / "failed").to_arrow()["x"].to_pylist() == left_out
    kept = windrow.read_parquet(tmp_path / "out").to_arrow()["x"].to_pylist()
    assert kept == [at for at in range(ROWS) if at not in left_out]


def test_actors_that_die_behind_the_shuffle_lose_nothing(numbers: Path, tmp_path: Path) -> None:
    arguments = (tmp_path / "died", False, os.getpid())
    pipe = shuffled(numbers).map_batches(Dying, fn_constructor_args=arguments, compute="actors", num_cpus=0.5)
    (found,) = read_shards(pipe, 1)
    (expected,) = read_shards(shuffled(numbers), 1)
    assert [batch["x"].tolist() for batch in found] == [batch["x"].tolist() for batch in expected]
    assert (tmp_path / "died").exists()


@pytest.mark.nightly
def test_a_coordinator_that_dies_gets_new_pools(numbers: Path) -> None:
    # those of other tests' runs, which the tracebacks of errors may hold
    gc.collect()
    assert eventually(lambda: not _alive("Coordinator")), f"coordinators are left: {_alive('Coordinator')}"
    pipe = shuffled(numbers, epochs=6).map_batches(
        Model, fn_constructor_args=(1, 0.1), compute=windrow.ActorPool(2), num_cpus=0.3
    )
    found = []
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            for step, batch in enumerate(epoch.iter_batches(10)):
                found.append(batch["x"].tolist())
                if epoch.number == 1 and step == 20:
                    (coordinator,) = _alive("Coordinator")
                    os.kill(coordinator["Pid"], signal.SIGKILL)
    (expected,) = read_shards(shuffled(numbers, epochs=6), 1)
    assert found == [batch["x"].tolist() for batch in expected]


def test_errors_of_functions_behind_the_shuffle(numbers: Path) -> None:
    pipe = shuffled(numbers).map_batches(_fail, compute="actors", num_cpus=0.5)
    with pytest.raises(
        TransformError, match=r"_fail\), epoch 0, window \d, rows from place.*ZeroDivisionError"
    ):
        read_shards(pipe, 1)
