"""The Ray executor when things go wrong: failures, second readers, worker deaths, and released windows."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
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
from tests.shuffle.tables import rows_of
from windrow.core.errors import PlanError, SourceError, StallError, TransformError, WindrowError
from windrow.core.source import BlockAddress
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors import window_fetch
from windrow.pipeline.executors.base import CoordinatorClient, Waiting, WindowData
from windrow.pipeline.executors.ray import client, coordinator_calls
from windrow.pipeline.executors.ray import fetch_thread as fetcher_module
from windrow.pipeline.executors.ray.coordinator import Coordinator
from windrow.pipeline.executors.ray.coordinator_calls import make_death_error
from windrow.pipeline.executors.ray.executor import RayExecutor
from windrow.pipeline.executors.ray.fetch_thread import Fetcher
from windrow.pipeline.executors.ray.ray_task import _WorkerState
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.map_task import TaskContext
from windrow.pipeline.tasks.task import Task, Work
from windrow.shuffle.kernels.map_output import MapOutput
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


@pytest.fixture
def shard_client(ray_local: Any) -> Iterator[CoordinatorClient]:
    case = Case((10,) * 6, ONE_BLOCK)
    program = Program(case.job("ray"), 1, False, (0,))
    shard_client = RayExecutor().session(program, None).shard_client(0, 5, program.job.seed)
    yield shard_client
    shard_client.close()


def contents(data: WindowData | None) -> list[Any]:
    assert data is not None
    slices = [[each for each in of_slice if isinstance(each, MapOutput)] for of_slice in data.slices]
    return [[rows_of(map_output).to_pydict() for map_output in of_slice] for of_slice in slices]


def fetcher_of(shard_client: CoordinatorClient) -> Fetcher:
    return cast("Fetcher", cast("Any", shard_client)._fetcher)


@pytest.mark.nightly
def test_evicted_windows_return_and_nothing_is_fetched_meanwhile(
    shard_client: CoordinatorClient,
) -> None:
    stop = threading.Event()
    shard_client.open_epoch(Cursor(), 5, drop_last=False)
    first = contents(shard_client.window(0, 0, stop))
    fetcher = fetcher_of(shard_client)
    with fetcher._changed:
        assert fetcher._changed.wait_for(lambda: fetcher._ahead.next() is None, WAIT_SECONDS)
        under_way = fetcher._ahead.fetched[0, 1]
    assert (0, 0) not in fetcher._ahead.fetched, "what is being consumed is not fetched again"
    stopped = threading.Event()
    stopped.set()
    shard_client.release(stopped)
    assert fetcher._ahead.fetched, "a stopped prefetch loop releases no window that another one fetches"
    shard_client.release(stop)
    fetcher._store((0, 1), under_way)
    assert fetcher._ahead.fetched == {}
    assert fetcher._ahead.next() is None
    assert contents(shard_client.window(0, 0, stop)) == first
    shard_client.acknowledge(Place(0, 1))
    assert contents(shard_client.window(0, 1, stop)) != first


def test_stopped_client_takes_nothing(shard_client: CoordinatorClient) -> None:
    shard_client.open_epoch(Cursor(), 5, drop_last=False)
    stopped = threading.Event()
    stopped.set()
    assert shard_client.window(0, 1, stopped) is None
    assert fetcher_of(shard_client)._ahead._requested is None


@pytest.mark.nightly
def test_client_closed_while_opening_an_epoch_fetches_nothing(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_meanwhile(ref: Any, who: str, waiting: Waiting) -> Any:
        answer = coordinator_calls.await_answer(ref, who, waiting)
        shard_client.close()
        return answer

    monkeypatch.setattr(client, "await_answer", close_meanwhile)
    with pytest.raises(PlanError, match="shard 0 was closed while epoch 0 was being opened"):
        shard_client.open_epoch(Cursor(), 5, drop_last=False)
    assert fetcher_of(shard_client) is None


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


def test_the_place_of_a_fetcher_never_goes_back(shard_client: CoordinatorClient) -> None:
    shard_client.open_epoch(Cursor(), 5, drop_last=False)
    for window in (3, 1):
        shard_client.acknowledge(Place(0, window))
    assert fetcher_of(shard_client)._ahead.place == Place(0, 3)


def test_objects_that_stay_lost_end_in_an_error(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: Fetcher, reply: Any, *arguments: Any) -> Any:
        raise ObjectLostError("ab" * 28, "", "")

    monkeypatch.setattr(Fetcher, "_load", lose)
    monkeypatch.setattr(window_fetch, "_MAX_PAUSE_SECONDS", 0.001)
    shard_client.open_epoch(Cursor(), 5, drop_last=False)
    with pytest.raises(StallError, match=r"shard 0: map outputs of epoch 0, window 0 were lost 30 times"):
        shard_client.window(0, 0, threading.Event())


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


@pytest.mark.parametrize("call", [pytest.param("wait", marks=pytest.mark.nightly), "get"])
def test_silent_objects_are_requested_again(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Ray can fail to notify one of two threads of a process that an object is local."""
    deaf = threading.Event()
    heard = getattr(ray, call)

    def forget(refs: Any, **options: Any) -> Any:
        if (
            deaf.is_set()
            and isinstance(refs, list)
            and threading.current_thread().name.startswith("windrow-fetch")
        ):
            assert options.get("timeout") is not None, "this would wait forever"
            if call == "wait":
                time.sleep(0.1)
                return [], refs
            raise ray.exceptions.GetTimeoutError("not heard of")
        return heard(refs, **options)

    asked: list[str] = []
    replies: list[weakref.ref[Any]] = []
    patience: list[float] = []
    ask, load = Fetcher._poll, Fetcher._load

    def note_ask(self: Fetcher, key: Key, attempt: str, have: frozenset[int], lost: str) -> Any:
        # releasing a reply would cancel transfers
        assert all(reply() is not None for reply in replies)
        asked.append(attempt)
        if len(asked) > 3:
            deaf.clear()
        return ask(self, key, attempt, have, lost)

    def note_load(self: Fetcher, reply: Any, patience_seconds: float, wanted: Any) -> Any:
        replies.append(weakref.ref(reply))
        patience.append(patience_seconds)
        return load(self, reply, patience_seconds, wanted)

    monkeypatch.setattr(window_fetch, "_LOAD_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(window_fetch, "_MAX_LOAD_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(Fetcher, "_poll", note_ask)
    monkeypatch.setattr(Fetcher, "_load", note_load)
    monkeypatch.setattr(ray, call, forget)
    deaf.set()
    shard_client.open_epoch(Cursor(), 5, drop_last=False)
    data = shard_client.window(0, 0, threading.Event())
    assert data is not None
    assert asked[:4] == [""] * 4
    assert patience[:4] == [0.2, 0.4, 0.5, 0.5]


def test_objects_that_arrive_one_by_one_are_waited_for(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_client.open_epoch(Cursor(), 5, drop_last=False)
    me, waits, clock = threading.current_thread(), count(), count()
    wait = ray.wait

    def dawdle(refs: Any, **options: Any) -> Any:
        if threading.current_thread() is not me:
            return wait(refs, **options)
        ready = next(waits) % 2
        return refs[:ready], refs[ready:]

    monkeypatch.setattr(ray, "wait", dawdle)
    monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    refs = [ray.put(number) for number in range(9)]
    assert fetcher_of(shard_client)._get(refs, 4.0) == dict(zip(refs, range(9), strict=True))
