"""Shards on threads: how reading ends, fails, pauses and moves."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.end_to_end.reading import eventually
from tests.laws.cases import Case
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.executors.threads_job import ThreadsClient
from windrow.pipeline.plan import memory_budget, program
from windrow.pipeline.shard import epoch as epoch_module
from windrow.pipeline.shard import prefetch_loop, run_reader
from windrow.pipeline.shard.epoch_reader import EpochReader
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = pytest.mark.timeout(60)

CASE = Case((40, 40), WindowCut(blocks_per_window=1), epochs=4, batch_rows=4)
ROWS = list(range(80))


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (program, memory_budget):
        monkeypatch.setattr(module, "RUN_BYTES", 100)


def _open(shards: int = 1, **changes: Any) -> list[Shard]:
    return open_shards(replace(CASE.job(ThreadsExecutor(2)), **changes), shards)


def _x(batches: Any) -> list[int]:
    return sorted(value for batch in batches for value in batch["x"].tolist())


def _run_of(shard: Shard) -> Any:
    """The driver behind an open shard."""
    shard_client: Any = shard._connection.open(4, None)
    return shard_client._job


def _count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    """The threads that have called a method."""
    calls: list[int] = []
    method: Callable[..., Any] = getattr(owner, name)

    def note(self: Any, *args: Any, **named: Any) -> Any:
        calls.append(threading.get_ident())
        return method(self, *args, **named)

    monkeypatch.setattr(owner, name, note)
    return calls


@pytest.mark.parametrize("with_shard", [True, False])
def test_finalizer_sends_nothing_from_the_thread_it_interrupts(
    monkeypatch: pytest.MonkeyPatch, with_shard: bool
) -> None:
    callers = _count_calls(monkeypatch, Driver, "_handle")
    (shard,) = _open()
    batches = shard.iter_batches(4)
    next(batches)
    held: Any = [batches, shard if with_shard else None]
    held.append(held)
    run = _run_of(shard)
    if with_shard:
        del shard
    del batches
    callers.clear()
    with run.changed:
        # as if the garbage collector ran while this thread changes the driver's state
        del held
        gc.collect()
        assert threading.get_ident() not in callers
    assert eventually(lambda: bool(callers))
    assert threading.get_ident() not in callers
    if with_shard:
        assert eventually(lambda: bool(run.ended))
    else:
        assert _x(shard.iter_batches(4)) == ROWS
        assert shard.stats().batches == 1 + 20


def test_rows_that_were_consumed_are_counted_once() -> None:
    (shard,) = _open()
    with shard:
        batches = shard.iter_batches(7)
        for _ in range(3):
            next(batches)
        batches.close()
        stats = shard.stats()
        assert (stats.epochs, stats.batches, stats.rows) == (0, 3, 21)
        list(shard.iter_batches(7))
        stats = shard.stats()
        assert (stats.epochs, stats.batches, stats.rows) == (1, 3 + 12, 21 + 80)


def test_batch_withheld_by_a_failure_is_delivered_next() -> None:
    fails = threading.Event()

    def fail(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if fails.is_set():
            raise ArithmeticError("not yet")
        return batch

    (shard,) = _open(after=(MapBatches(fail),))
    with shard:
        batches = shard.iter_batches(4)
        delivered = [next(batches)]
        fails.set()
        with pytest.raises(TransformError):
            # keeps what comes before the failure
            delivered.extend(batches)
        fails.clear()
        assert repr(shard) == "Shard(0 of 1, at epoch 0)"
        assert _x([*delivered, *shard.iter_batches(4)]) == ROWS
        assert repr(shard) == "Shard(0 of 1, at epoch 1)"


def test_a_dropped_iterator_has_left_its_epoch_at_once() -> None:
    (shard,) = _open()
    with shard:
        for number in range(3):
            batches = shard.iter_batches(4)
            next(batches)
            del batches
            state = shard.state_dict()
            assert (state["epoch"], state["row"]) == (number, 4)


def test_the_late_end_of_a_dropped_iterator_does_not_undo_a_loaded_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[Callable[[], object]] = []
    monkeypatch.setattr(epoch_module, "in_background", late.append)
    (shard,) = _open()
    with shard:
        batches = shard.iter_batches(4)
        next(batches)
        next(batches)
        saved = shard.state_dict()
        next(batches)
        del batches
        shard.load_state_dict(saved)
        late.pop()()
        assert shard.state_dict() == saved


def test_repr_ends_no_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    # a debugger shows it in any thread, and the end of an iterator may wait for the engine
    monkeypatch.setattr(epoch_module, "in_background", lambda call: None)
    (shard,) = _open()
    with shard:
        next(shard.iter_batches(4))
        ended = _count_calls(monkeypatch, EpochReader, "end")
        assert repr(shard) == "Shard(0 of 1, at epoch 0)"
        assert ended == []


def test_after_a_failure_the_shards_share_one_new_run() -> None:
    both_opened, repaired = threading.Event(), threading.Event()

    def fail(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        # a shard that is opened after the failure would already start the new driver
        assert both_opened.wait(60)
        if not repaired.is_set():
            raise ArithmeticError("not yet")
        return batch

    first, second = _open(2, before=(MapBatches(fail),))
    with first, second:
        opened = [first.iter_batches(4), second.iter_batches(4)]
        both_opened.set()
        with pytest.raises(TransformError):
            next(opened[0])
        repaired.set()
        again = first.iter_batches(4)
        # the second shard notices the failure when the first has already restarted
        with pytest.raises(TransformError):
            next(opened[1])
        others = second.iter_batches(4)
        assert _run_of(first) is _run_of(second)
        assert sorted(_x(again) + _x(others)) == ROWS


@pytest.mark.filterwarnings("ignore:shard 0 of the threads executor")
def test_pickled_shard_continues_where_it_was() -> None:
    (shard,) = _open()
    list(shard.iter_batches(4))
    batches = shard.iter_batches(4)
    next(batches)
    with pytest.raises(PlanError, match="while it is being iterated"):
        pickle.dumps(shard)
    batches.close()
    with pickle.loads(pickle.dumps(shard)) as moved:
        assert moved.state_dict() == shard.state_dict()
        assert moved.state_dict()["row"] == 4
        assert [epoch.number for epoch in moved.iter_epochs()] == [2, 3]
    shard.close()
    with pytest.raises(PlanError, match="closed"):
        pickle.loads(pickle.dumps(shard)).iter_batches(4)


@pytest.mark.parametrize("batch_format", ["numpy", "pandas"])
def test_another_thread_closes_while_a_batch_is_awaited(batch_format: Any) -> None:
    go_on = threading.Event()

    def block(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        go_on.wait(20)
        return batch

    (shard,) = _open(before=(MapBatches(block),))
    batches = shard.iter_batches(4, batch_format=batch_format)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            next(batches)
        except BaseException as error:
            errors.append(error)

    consumer = threading.Thread(target=read)
    consumer.start()
    time.sleep(0.1)
    closer = threading.Thread(target=shard.close)
    closer.start()
    consumer.join(20)
    go_on.set()
    closer.join(20)
    assert [type(error) for error in errors] == [PlanError]
    assert shard._connection._resources is None
    with pytest.raises(StopIteration):
        next(batches)


def test_a_consumer_that_pauses_holds_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_loop, "_RELEASE_SECONDS", 0.05)
    calls = _count_calls(monkeypatch, ThreadsClient, "release")
    (shard,) = _open(before=())
    with shard:
        batches = shard.iter_batches(4)
        got = [next(batches)]
        for _ in range(2):
            seen = len(calls)
            assert eventually(lambda seen=seen: len(calls) > seen)  # type: ignore[misc]
            windows = [thing for thing in gc.get_objects() if type(thing) is WindowData]
            assert not any(
                map_output
                for window in windows
                for map_outputs in window.slices
                for map_output in map_outputs
            )
            got += [next(batches) for _ in range(6)]
        assert _x([*got, *batches]) == ROWS
        assert _x(shard.iter_batches(4)) == ROWS


def test_every_batch_is_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "RUN_BYTES", 10_000)
    monkeypatch.setattr(run_reader, "_HEARTBEAT_SECONDS", 0.0)
    heartbeats = _count_calls(monkeypatch, ThreadsClient, "heartbeat")
    (shard,) = _open()
    with shard:
        batches = shard.iter_batches(4)
        next(batches)
        seen = len(heartbeats)
        for _ in range(5):
            next(batches)
        assert len(heartbeats) >= seen + 5


@pytest.mark.parametrize("batch_size", [2.5, -3, 0, "10", None, True, 2**62])
def test_steps_per_epoch_checks_the_batch_size_as_iterating_does(batch_size: Any) -> None:
    (shard,) = _open()
    message = r"batch_size=.* must be an integer of 1 or more"
    with shard:
        with pytest.raises(PlanError, match=message):
            shard.iter_batches(batch_size)
        with pytest.raises(PlanError, match=message):
            shard.steps_per_epoch(batch_size)


def test_steps_per_epoch_checks_drop_last() -> None:
    (shard,) = _open()
    no_flag: Any = 1
    with shard, pytest.raises(PlanError, match="drop_last=1 must be True or False"):
        shard.steps_per_epoch(10, drop_last=no_flag)


@pytest.mark.parametrize("batch_size", [np.int64(10), 10.0])
def test_steps_per_epoch_takes_whole_numbers_of_any_type(batch_size: Any) -> None:
    (shard,) = _open()
    with shard:
        steps = shard.steps_per_epoch(batch_size)
    assert steps == 8
    assert type(steps) is int
