"""The Ray executor when things go wrong: failures, second readers, worker deaths, and released windows."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from tests.end_to_end.reading import eventually
from tests.laws.cases import BlocksSource, Case
from windrow.core.errors import PlanError, SourceError, StallError, TransformError, WindrowError
from windrow.core.source import BlockAddress
from windrow.pipeline.executors.ray.coordinator import Coordinator
from windrow.pipeline.executors.ray.coordinator_calls import make_death_error
from windrow.pipeline.executors.ray.executor import RayExecutor
from windrow.pipeline.executors.ray.ray_task import _WorkerState
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.map_task import TaskContext
from windrow.pipeline.tasks.task import Task, Work
from windrow.shuffle.order.epoch_plan import WindowCut

ONE_BLOCK = WindowCut(blocks_per_window=1)
WAIT_SECONDS = 30.0


def fail_while_there(batch: dict[str, Any], flag: str) -> dict[str, Any]:
    if os.path.exists(flag):
        raise OSError("connection reset")
    return batch


def refuse_to_load() -> Any:
    raise ImportError("no module named 'only_here'")


class UnloadableSource(BlocksSource):
    """A source that other processes cannot load."""

    def __reduce__(self) -> Any:
        return refuse_to_load, ()


def with_map(case: Case, function: Any, *args: Any) -> Job:
    return replace(case.job("ray"), before=(MapBatches(function, fn_args=args),))


def read(iterator: Iterator[Any]) -> list[list[int]]:
    return [batch["x"].tolist() for batch in iterator]


@pytest.mark.nightly
def test_runs_placed_for_another_assignment_are_rejected_after_one_batch(ray_local: Any) -> None:
    case = Case((10,) * 6, ONE_BLOCK, shards=2, batch_rows=5, epochs=2)
    first, second = open_shards(case.job("ray"), 2)
    with first, second:
        for shard, rows in zip((first, second), case.assigned(0).batches, strict=True):
            assert read(shard.iter_batches(5)) == rows
        assert eventually(lambda: any(span.epoch == 1 for span in second.stats().spans))
        theirs = first.iter_batches(4)

        def read_two() -> None:
            # raises immediately if its prefetch loop has requested one more window since, and got the error
            batches = second.iter_batches(5)
            assert next(batches)["x"].tolist() == case.assigned(1).batches[1][0]
            next(batches)

        with pytest.raises(PlanError, match="epoch 1 is being read with batch_size=4"):
            read_two()
        # nothing of it was consumed
        state = second.state_dict()
        assert (state["epoch"], state["row"]) == (1, 0)
        assert read(second.iter_batches(4)) == case.assigned(1, 4).batches[1]
        assert read(theirs) == case.assigned(1, 4).batches[0]


def test_shards_are_freed_after_one_was_refused(ray_local: Any) -> None:
    case = Case((10,) * 6, ONE_BLOCK, shards=2, batch_rows=5, epochs=2)

    def refuse() -> list[weakref.ref[Shard]]:
        first, second = open_shards(case.job("ray"), 2)
        with first, second:
            for shard in (first, second):
                read(shard.iter_batches(5))
            assert eventually(lambda: any(span.epoch == 1 for span in second.stats().spans))
            theirs = first.iter_batches(4)
            with suppress(PlanError):
                read(second.iter_batches(5))
                raise AssertionError("the shards read with two batch sizes")
            theirs.close()
        return [weakref.ref(first), weakref.ref(second)]

    freed = refuse()
    gc.collect()
    assert [each() for each in freed] == [None, None]


def test_shard_can_read_an_epoch_that_its_copy_has_read(ray_local: Any) -> None:
    case = Case((10,) * 6, ONE_BLOCK, batch_rows=5, epochs=2)
    (shard,) = open_shards(case.job("ray"), 1)
    with shard:
        assert read(shard.iter_batches(5)) == case.assigned(0).batches[0]
        with pickle.loads(pickle.dumps(shard)) as copy:
            assert read(copy.iter_batches(5)) == case.assigned(1).batches[0]
        assert read(shard.iter_batches(5)) == case.assigned(1).batches[0]


@pytest.mark.parametrize("size", [5, 4])
def test_next_epoch_is_read_as_predicted_or_requested_again(ray_local: Any, size: int) -> None:
    case = Case((10,) * 6, ONE_BLOCK, shards=2, batch_rows=5, epochs=2)
    first, second = open_shards(case.job("ray"), 2)
    with first, second:
        for shard, rows in zip((first, second), case.assigned(0).batches, strict=True):
            assert read(shard.iter_batches(5)) == rows
        assert read(first.iter_batches(5)) == case.assigned(1).batches[0]
        if size == 5:
            assert read(second.iter_batches(size)) == case.assigned(1).batches[1]
        else:
            with pytest.raises(PlanError, match="epoch 1 is being read with batch_size=5"):
                read(second.iter_batches(size))
            assert read(second.iter_batches(5)) == case.assigned(1).batches[1]


def test_a_failed_shard_can_be_read_again(ray_local: Any, tmp_path: Path) -> None:
    case = Case((10,) * 6, ONE_BLOCK, shards=2, batch_rows=5)
    flag = tmp_path / "flag"
    flag.touch()
    shards = open_shards(with_map(case, fail_while_there, str(flag)), 2)
    try:
        for shard in shards:
            with pytest.raises(TransformError, match="connection reset"):
                read(shard.iter_batches(5))
        flag.unlink()
        iterators = [shard.iter_batches(5) for shard in shards]
        assert [read(iterator) for iterator in iterators] == case.assigned(0).batches
    finally:
        for shard in shards:
            shard.close()


@pytest.mark.nightly
def test_epochs_whose_last_windows_hold_nothing_of_any_step_follow_each_other(ray_local: Any) -> None:
    case = Case((10,) * 10, ONE_BLOCK, epochs=6, batch_rows=64)
    (shard,) = open_shards(case.job("ray"), 1)
    with shard:
        for epoch in range(6):
            batches = shard.iter_batches(64, drop_last=True)
            # and not the end behind it
            assert next(batches)["x"].tolist() == case.assigned(epoch).batches[0][0]
            del batches


def test_of_two_readers_of_a_shard_the_later_one_has_it(ray_local: Any) -> None:
    case = Case((10,) * 20, ONE_BLOCK, batch_rows=5)
    (shard,) = open_shards(case.job("ray"), 1)
    copy: Shard = pickle.loads(pickle.dumps(shard))
    with copy:
        earlier = shard.iter_batches(5)
        next(earlier)
        later = copy.iter_batches(5)
        got = [next(later)["x"].tolist()]
        with pytest.raises(PlanError, match="shard 0 is being iterated elsewhere"):
            read(earlier)
        # neither its progress nor its end touches what the other reads
        shard.close()
        assert got + read(later) == case.assigned(0).batches[0]


def keep(batch: dict[str, Any], weights: bytes) -> dict[str, Any]:
    return batch


# Ray keeps arguments beyond 100 kB in its object store, and loses them once an actor has started
@pytest.mark.parametrize("argument_bytes", [pytest.param(0, marks=pytest.mark.nightly), 300_000])
def test_a_restarted_coordinator_changes_nothing(ray_local: Any, argument_bytes: int) -> None:
    case = Case((10,) * 20, ONE_BLOCK, shards=2, batch_rows=5)
    stage = MapBatches(keep, fn_kwargs={"weights": os.urandom(argument_bytes)})
    shards = open_shards(replace(case.job("ray"), before=(stage,)), 2)
    try:
        iterators = [shard.iter_batches(5) for shard in shards]
        got = [[next(iterator)["x"].tolist() for _ in range(4)] for iterator in iterators]
        ray.kill(cast("Any", shards[0]._session)._coordinator, no_restart=False)
        for _ in range(len(case.assigned(0).batches[0]) - 4):
            for batches, iterator in zip(got, iterators, strict=True):
                batches.append(next(iterator)["x"].tolist())
        assert got == case.assigned(0).batches
    finally:
        for shard in shards:
            shard.close()


class Failures(list[Any]):
    """Stands for a driver, and records failures."""

    def task_failed(self, failure: Any) -> None:
        self.append(failure)


def test_a_worker_that_crashes_is_an_error_that_names_the_blocks(ray_local: Any) -> None:
    program = Program(with_map(Case((10,)), fail_while_there, ""), 1, False, (0,))
    task = Task(Work(0, 0, 0, 0, 0), (0,), program.job.source.addresses([0]), (10,), True, None)
    failures = Failures()

    async def die() -> None:
        raise WorkerCrashedError

    async def take() -> None:
        coordinator = Coordinator(program, RayExecutor().resources(), ((None,),))
        await coordinator._record_result(cast("Any", failures), task, die(), None, ())

    asyncio.run(take())
    with pytest.raises(TransformError, match=r"epoch 0, window 0: block 0: the worker process died"):
        failures[0].rethrow()


def test_a_coordinator_that_cannot_start_is_not_blamed_on_the_process(ray_local: Any) -> None:
    job = replace(Case((10,)).job("ray"), source=UnloadableSource((10,)))
    (shard,) = open_shards(job, 1)
    with shard, pytest.raises(StallError, match=r"(?s)it could not start.*no module named 'only_here'"):
        shard.iter_batches(5)


@pytest.mark.parametrize(
    ("error", "transforms", "kind", "text"),
    [
        (OutOfMemoryError("killed"), False, SourceError, "ran out of memory while reading"),
        (OutOfMemoryError("killed"), True, TransformError, "ran out of memory"),
        (WorkerCrashedError(), False, SourceError, "worker process died"),
        (NodeDiedError("gone"), True, StallError, "NodeDiedError"),
    ],
)
def test_dead_actor_is_reported_as_a_windrow_error(
    error: Exception, transforms: bool, kind: type[WindrowError], text: str
) -> None:
    addresses = tuple(BlockAddress(f"part-{i}", i) for i in range(5))
    task = Task(Work(3, 2, 0, 0, 0), tuple(range(5)), addresses, (None,) * 5, True, None)
    ours = make_death_error(task, error, transforms=transforms)
    assert type(ours) is kind
    assert str(ours).startswith("epoch 3, window 2: part-0, part-1, part-2 and 2 more")
    assert text in str(ours)


def test_a_cancelled_task_is_named_without_the_traceback_of_its_worker() -> None:
    remote = "ray::windrow:map 0.0.0()\n  File 'a.py', line 7, in _run\nTask: 9 was cancelled."
    error = RayTaskError("map", remote, TaskCancelledError()).as_instanceof_cause()
    task = Task(Work(3, 2, 0, 0, 0), (0,), (BlockAddress("part-0", 0),), (None,), True, None)
    ours = make_death_error(task, error, transforms=True)
    assert type(ours) is StallError
    assert str(ours) == (
        "epoch 3, window 2: part-0: the task was cancelled: by ray.cancel, or by an interrupt (SIGINT) of its "
        "worker. Start the epoch again. Ray says: Task: 9 was cancelled."
    )


def test_a_worker_keeps_idle_memory_for_about_two_outputs() -> None:
    kept = _WorkerState(TaskContext(BlocksSource((1,)).reader, ()))
    kept.fit_pool(1 << 20)
    pool = kept.pool
    lent = [pool.take(1 << 20) for _ in range(2)]
    del lent
    assert pool.idle_bytes == 2 << 20
    pool.take(3 << 20)
    assert pool.idle_bytes == 0
    kept.fit_pool(1 << 20)
    assert kept.pool is pool


class Lossy(Failures):
    """Stands for a driver that has blocks read again."""

    def blocks_lost(self, task: Task) -> Task:
        return replace(task, found=())


def test_lost_cached_blocks_are_read_again(ray_local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(Case((10,)).job("ray"), 1, False, (0,))
    addresses = program.job.source.addresses([0])
    task = Task(Work(0, 0, 0, 0, 0), (0,), addresses, (10,), reads=True, ordering=None, found=(0,))
    submitted: list[Any] = []
    monkeypatch.setattr(Coordinator, "submit", lambda self, *args: submitted.append(args))
    driver = Lossy()

    async def lose() -> None:
        raise ObjectLostError("ab" * 28, "", "")

    async def take() -> None:
        coordinator = Coordinator(program, RayExecutor().resources(), ((None,),))
        await coordinator._record_result(cast("Any", driver), task, lose(), None, ())

    asyncio.run(take())
    assert submitted == [(driver, replace(task, found=()), None, ())]
    assert driver == []


def test_the_last_shard_takes_the_files_of_the_run_with_it(ray_local: Any, tmp_path: Path) -> None:
    case = Case((10,) * 6, ONE_BLOCK, epochs=3, shards=2, batch_rows=5)
    job = case.job("ray")
    job = replace(job, options=replace(job.options, cache="disk", cache_dir=tmp_path))
    first, second = open_shards(job, 2)
    iterators = [first.iter_batches(5), second.iter_batches(5)]
    assert [read(iterator) for iterator in iterators] == case.assigned(0).batches
    (folder,) = tmp_path.iterdir()
    blocks = {f"{block}.block" for block in range(6)}
    assert blocks <= set(os.listdir(folder))
    first.close()
    assert blocks <= set(os.listdir(folder))
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_cached_blocks_leave_the_object_store_with_the_last_shard(ray_local: Any) -> None:
    case = Case((200_000,) * 4, ONE_BLOCK, epochs=3, batch_rows=100_000, cache="memory")
    (shard,) = open_shards(case.job("ray"), 1)
    kept_bytes = 4 * 200_000 * 13
    before = used_bytes()
    with shard:
        assert len(list(shard.iter_batches(100_000))) == 8
        assert shard.stats().run.cache_bytes == kept_bytes
        wait_until(lambda: used_bytes() - before >= kept_bytes)
    # what all tasks share stays as long as the shard
    wait_until(lambda: used_bytes() - before < 10_000)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def used_bytes() -> int:
    """Bytes in the object store, as the raylet reports them."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return int(total["object_store_memory"] - free.get("object_store_memory", 0))
