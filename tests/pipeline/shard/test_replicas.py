"""Replicas of a shard get the same batches, each at its own pace, and rows are placed once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.narrowing import narrowing_hosts
from windrow.core.errors import PlanError, StallError, StateError
from windrow.pipeline.delivery.sequence_slice import Selection
from windrow.pipeline.delivery.wanted import Wanted
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.memory_budget import RUNS_AHEAD
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.shard import Shard
from windrow.pipeline.statistics.phases import TrainerStats

Batches = list[tuple[int, list[int]]]


def make_pipe(
    rows: int, block_rows: int, window: int, epochs: int, **options: Any
) -> windrow.DatasetPipeline:
    pipe = windrow.range(rows, block_rows=block_rows).window(blocks_per_window=window).repeat(epochs)
    return pipe.random_shuffle_each_window(seed=5).options(executor="threads", progress=False, **options)


def make_replicas(pipe: windrow.DatasetPipeline, shards: int, replicas: int) -> list[list[Shard]]:
    return pipe.split(shards, equal=True, replicas=replicas)


def read(shard: Any, batch_size: int, wait: Callable[[int], None] = lambda _: None) -> Batches:
    found = []
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(batch_size):
            # what a reader writes is its own
            found.append((epoch.number, batch["id"].tolist()))
            batch["id"][:] = -1
            wait(len(found))
    shard.close()
    return found


@settings(max_examples=15)
@given(
    data=st.data(),
    rows=st.integers(0, 300),
    block_rows=st.integers(1, 60),
    window=st.integers(1, 5),
    shards=st.integers(1, 3),
    replicas=st.integers(1, 4),
    batch_size=st.integers(1, 40),
)
def test_replicas_get_what_a_shard_gets(
    data: st.DataObject, rows: int, block_rows: int, window: int, shards: int, replicas: int, batch_size: int
) -> None:
    pipe = make_pipe(rows, block_rows, window, 2)
    expected = [read(shard, batch_size) for shard in pipe.split(shards, equal=True)]
    slow = data.draw(st.integers(0, replicas - 1))

    def wait(taken: int) -> None:
        time.sleep(0.002)

    made = make_replicas(pipe, shards, replicas)
    with ThreadPoolExecutor(shards * replicas) as pool:
        found = [
            [
                pool.submit(read, each, batch_size, *([wait] if number == slow else []))
                for number, each in enumerate(of_shard)
            ]
            for of_shard in made
        ]
        for of_shard, rows_of_shard in zip(found, expected, strict=True):
            assert [each.result(60) for each in of_shard] == [rows_of_shard] * replicas


def test_transforms_after_the_shuffle_run_once() -> None:
    calls: list[int] = []

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["id"]))
        return {"id": 2 * batch["id"]}

    pipe = make_pipe(200, 20, 5, 1).map_batches(double)
    [replicas] = make_replicas(pipe, 1, 3)
    # of so little data, a run could end before the last one begins
    all_read = threading.Barrier(3)

    def wait(batches: int) -> None:
        if batches == 1:
            all_read.wait(60)

    with ThreadPoolExecutor(3) as pool:
        one, *others = (each.result(60) for each in [pool.submit(read, each, 50, wait) for each in replicas])
    assert sorted(row for _, batch in one for row in batch) == list(range(0, 400, 2))
    assert others == [one, one]
    assert sum(calls) == 200


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.pipeline.plan.program.RUN_BYTES", 8_000)


@pytest.mark.usefixtures("small_runs")
def test_a_replica_waits_for_one_that_takes_nothing() -> None:
    pipe = make_pipe(40_000, 1_000, 40, 1)
    [[fast, slow]] = make_replicas(pipe, 1, 2)
    first = iter(slow.iter_batches(100))
    next(first)
    taken: list[int] = []

    def take() -> None:
        taken.extend(len(batch["id"]) for batch in fast.iter_batches(100))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    _until_still(lambda: len(taken))
    program = Program(pipe._job(), 1, True, (0,))
    run_batches = program.run_rows(100) // 100
    # what both have prefetched, and how far one may be ahead
    assert run_batches < 20
    assert len(taken) <= (3 * RUNS_AHEAD + 2) * run_batches
    rest = sum(len(batch["id"]) for batch in first)
    assert rest == 39_900
    thread.join(30)
    assert sum(taken) == 40_000


def _until_still(value: Callable[[], int]) -> None:
    last, since = value(), time.monotonic()
    while time.monotonic() - since < 1.5:
        time.sleep(0.05)
        if value() != last:
            last, since = value(), time.monotonic()


def test_a_replica_that_stops_early_holds_no_one() -> None:
    pipe = make_pipe(20_000, 500, 10, 2)
    expected = read(pipe.iterator(), 100)
    [[one, other]] = make_replicas(pipe, 1, 2)
    batches = other.iter_batches(100)
    next(batches)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read, one, 100)
        other.close()
        assert found.result(60) == expected


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("closes", ["first", "while the other begins"])
def test_a_replica_that_closes_before_it_reads_holds_no_one(closes: str) -> None:
    pipe = make_pipe(40_000, 500, 10, 2)
    expected = read(pipe.iterator(), 100)
    [[one, other]] = make_replicas(pipe, 1, 2)
    if closes == "first":
        other.close()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read, one, 100)
        other.close()
        assert found.result(30) == expected


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("becomes", ["closed", "elsewhere"])
def test_a_replica_that_waits_for_one_goes_on_once_nobody_needs_that_one(
    monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    """It has taken as many runs of one slice as it may be ahead, and places no other before these are dropped."""
    # after which the window would be fetched again, without these runs
    monkeypatch.setattr("windrow.pipeline.shard.prefetch_loop._RELEASE_SECONDS", 1_000.0)
    pipe = make_pipe(40_000, 1_000, 40, 1, stall_timeout=20.0)
    expected = read(pipe.iterator(), 100)
    [[one, other]] = make_replicas(pipe, 1, 2)
    taken: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read, one, 100, taken.append)
        _until_still(lambda: len(taken))
        assert 0 < len(taken) < len(expected)
        if becomes == "closed":
            other.close()
        else:
            # as on Ray, where the other replica may have a host on its own node
            one._session._hosts.host(0, 5).note_elsewhere([1])  # type: ignore[attr-defined]
        assert found.result(30) == expected


def test_different_batch_sizes_are_an_error_on_all() -> None:
    [[one, other]] = make_replicas(make_pipe(400, 20, 5, 1), 1, 2)
    batches = one.iter_batches(10)
    next(batches)
    with pytest.raises(PlanError, match=r"batch_size=20.*replica 0 with batch_size=10.*the same values"):
        next(other.iter_batches(20))
    with pytest.raises(PlanError, match="the same values"):
        list(batches)


def test_different_epochs_are_an_error() -> None:
    pipe = make_pipe(400, 20, 5, 5)
    [[one, other]] = make_replicas(pipe, 1, 2)
    next(one.iter_batches(10))
    for _ in range(3):
        other.skip_epoch()
    with pytest.raises(StateError, match="opens epoch 3, replica 0 reads epoch 0"):
        next(other.iter_batches(10))


@pytest.mark.usefixtures("small_runs")
def test_a_missing_replica_is_named() -> None:
    pipe = make_pipe(40_000, 1_000, 40, 1, stall_timeout=2.0)
    [[one, _other]] = make_replicas(pipe, 1, 2)
    with (
        pytest.warns(RuntimeWarning, match="waits for replica 1"),
        pytest.raises(StallError, match="waits for replica 1, which is not connected"),
    ):
        list(one.iter_batches(100))


def test_a_missing_replica_is_named_where_it_keeps_windows_from_being_fetched() -> None:
    # room for three windows or four, besides runs and tasks
    pipe = make_pipe(4_000_000, 50_000, 4, 1, memory_limit=160 * 2**20, stall_timeout=2.0)
    [[one, _other]] = make_replicas(pipe, 1, 2)
    with (
        pytest.warns(RuntimeWarning, match="waits for replica 1"),
        pytest.raises(StallError, match=r"waits for replica 1, which is not connected for \d+ s"),
    ):
        list(one.iter_batches(10_000))


def test_a_replica_that_is_missing_at_the_next_epoch_is_named_as_soon() -> None:
    pipe = make_pipe(400, 100, 4, 2, stall_timeout=2.0)
    [[one, _other]] = make_replicas(pipe, 1, 2)
    assert sum(len(batch["id"]) for batch in one.iter_batches(10)) == 400
    # other batches need another opening, which would take from the other replica what it has not read
    with pytest.raises(
        StallError, match="has waited 2 s to open epoch 1: replica 1 has not read the one before"
    ):
        next(one.iter_batches(20))


def test_a_replica_that_dies_continues_from_its_state() -> None:
    pipe = make_pipe(3_000, 100, 5, 2)
    expected = read(pipe.iterator(), 50)
    [[one, other]] = make_replicas(pipe, 1, 2)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read, one, 50)
        batches = other.iter_batches(50)
        got = [next(batches)["id"].tolist() for _ in range(10)]
        state = other.state_dict()
        got_after = [next(batches)["id"].tolist() for _ in range(5)]
        # as if the process had ended: nothing is closed
        session = other._session
        again = Shard(other._program, session, 0, Cursor())
        again.load_state_dict(state)
        rest = read(again, 50)
        assert found.result(60) == expected
    assert [batch for _, batch in expected[:10]] == got
    assert [batch for _, batch in expected[10:15]] == got_after
    assert rest == expected[10:]


def test_a_late_replica_that_wants_other_columns() -> None:
    # more windows than the first may be ahead
    rows = windrow.range(2000, block_rows=20).map_batches(
        lambda batch: {"id": batch["id"], "a": batch["id"] * 2, "b": batch["id"] * 3}
    )
    pipe = rows.window(blocks_per_window=2).repeat(2)
    pipe = pipe.random_shuffle_each_window(seed=5).options(executor="threads", progress=False)
    (plain,) = pipe.split(1)
    expected = [batch["id"].tolist() for epoch in plain.iter_epochs() for batch in epoch.iter_batches(16)]

    def read_column(shard: Shard, name: str, factor: int) -> list[list[int]]:
        found = []
        for epoch in shard.iter_epochs():
            for batch in epoch.iter_batches(16, columns=[name]):
                assert list(batch) == [name]
                found.append((batch[name] // factor).tolist())
        shard.close()
        return found

    with narrowing_hosts() as fetched, ThreadPoolExecutor(2) as pool:
        [[first, second]] = make_replicas(pipe, 1, 2)
        begun = pool.submit(read_column, first, "a", 2)
        # the host does not wait longer for what the other one wants
        until = time.monotonic() + 30
        while not fetched:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert not fetched[0].covers(Wanted.by([Selection(["b"])]))
        late = pool.submit(read_column, second, "b", 3)
        assert begun.result(60) == expected
        assert late.result(60) == expected
        assert Wanted.by([Selection(["a"]), Selection(["b"])]) in fetched


def test_the_coordinator_hears_of_all_replicas_at_once() -> None:
    told: list[list[str]] = []

    class Client:
        def heartbeat(self, *stats: TrainerStats, waits: bool = False) -> None:
            told.append([each.replica for each in stats])

        def close(self, stats: TrainerStats | None = None) -> None:
            told.append(["closed"])

    def place(*_: Any) -> Any:
        raise NotImplementedError

    host = ReplicaHost(
        lambda _: cast(Any, Client()), place, place, 0, list("abc"), limit_bytes=1, max_ahead=1, leads_on=bool
    )
    host._client = cast(Any, Client())
    readers = [host.connect(replica) for replica in range(3)]

    def report(*replicas: int) -> None:
        for replica in replicas:
            host.heartbeat(readers[replica], TrainerStats(0, replica="abc"[replica]))

    report(0, 1, 2)
    assert told == [["a", "b", "c"]]
    # the third is silent
    report(0, 1, 1)
    assert told[1:] == [["a", "b"]]
    host.disconnect(readers[2])
    report(0)
    assert told[2:] == [["b", "a"]]
    # the second has not opened an epoch yet, and so still needs what the host has
    host.close(readers[0], TrainerStats(0, replica="a at its end"))
    host.close(readers[1], None)
    assert told[3:] == [["a at its end"], ["closed"]]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("closes_first", [True, False])
def test_nothing_is_held_for_a_shard_that_closes_unread(
    monkeypatch: pytest.MonkeyPatch, replicas: int, closes_first: bool
) -> None:
    # a silent shard would be given up sometime
    monkeypatch.setattr(
        "windrow.pipeline.coordinator.scheduling.memory_limit.HEARTBEAT_TIMEOUT_SECONDS", 1_000.0
    )
    # room for three windows or four, besides runs and tasks
    limit = {1: 128, 2: 160}[replicas] * 2**20
    pipe = make_pipe(4_000_000, 50_000, 4, 1, memory_limit=limit, stall_timeout=20)
    unread, [one, *others] = make_replicas(pipe, 2, replicas) if replicas > 1 else _single(pipe)
    batches = one.iter_batches(10_000)
    if not closes_first:
        next(batches)
    for each in (*unread, *others):
        each.close()
    assert sum(len(batch["id"]) for batch in batches) == 2_000_000 - 10_000 * (not closes_first)
    assert one.stats().run.dropped_windows == 0
    one.close()


def _single(pipe: windrow.DatasetPipeline) -> list[list[Shard]]:
    return [[shard] for shard in pipe.split(2, equal=True)]
