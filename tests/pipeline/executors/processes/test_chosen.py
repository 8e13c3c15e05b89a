"""Transforms that hold the GIL move to processes in the middle of a run, and no others do."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import windrow
from tests.pipeline.executors.processes import functions
from tests.pipeline.executors.processes.pools import pids_of, read, shuffled
from windrow.pipeline.executors.processes import chosen
from windrow.pipeline.executors.processes.chosen import ChosenWorkers, _CallMeter, may_move
from windrow.pipeline.tasks.map_batches import Call, MapBatches


class Clock:
    """Seconds, and CPU seconds of each thread, as a test sets them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.computed = threading.local()

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return float(getattr(self.computed, "seconds", 0.0))


@pytest.mark.parametrize(
    ("cores", "together", "holds"),
    [(1.0, True, True), (0.9, True, True), (1.9, True, False), (0.1, True, False), (1.0, False, False)],
)
def test_calls_that_share_one_core_hold_the_gil(
    monkeypatch: pytest.MonkeyPatch, cores: float, together: bool, holds: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(
        chosen, "time", SimpleNamespace(monotonic=clock.monotonic, thread_time=clock.thread_time)
    )
    meter, turns = _CallMeter(), threading.Barrier(2)

    def call(number: int) -> None:
        for _ in range(6):
            turns.wait()
            if together or number == 0:
                meter.__enter__()
            turns.wait()
            if number == 0:
                clock.now += 1.0
            clock.computed.seconds = clock.thread_time() + cores / 2
            turns.wait()
            if together or number == 0:
                meter.__exit__()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert meter.take_verdict() is holds
    # what was measured counts once
    assert not meter.take_verdict()


def test_a_run_goes_on_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def verdict(_: _CallMeter) -> bool:
        calls.append(1)
        return len(calls) == 5

    monkeypatch.setattr(_CallMeter, "take_verdict", verdict)
    plain = read(shuffled(4000, 20, epochs=2))
    batches = read(shuffled(4000, 20, epochs=2).map_batches(functions.count_here))
    assert [batch["id"] for batch in batches] == [batch["id"] for batch in plain]
    pids = pids_of(batches)
    assert os.getpid() in pids
    assert len(pids) > 1
    assert batches[-1]["pid"][0] != os.getpid()


def _module_level(batch: Any) -> Any:
    return batch


def test_only_functions_that_others_can_import_move() -> None:
    assert may_move(MapBatches(_module_level))
    assert may_move(MapBatches(functions.augment, rng=True))
    for stage in (
        MapBatches(lambda batch: batch),
        MapBatches(_module_level, compute="tasks"),
        MapBatches(_module_level, compute="processes"),
        MapBatches(functions.Counting),
        MapBatches(_module_level, fn_args=(threading.Lock(),)),
    ):
        assert not may_move(stage)


def test_nothing_moves_where_the_memory_limit_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_CallMeter, "take_verdict", lambda _: True)
    pipe = shuffled().options(memory_limit="64MiB").map_batches(functions.count_here)
    assert pids_of(read(pipe)) == {os.getpid()}
    pipe = shuffled().map_batches(functions.count_here, compute="tasks")
    assert pids_of(read(pipe)) == {os.getpid()}
    assert isinstance(pipe, windrow.DatasetPipeline)


def test_what_moves_after_the_run_has_closed_starts_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_CallMeter, "take_verdict", lambda _: True)
    workers = ChosenWorkers(MapBatches(functions.count_here), 2)
    call = Call(pa.table({"id": [1]}), "here", None, False)
    (begun,) = workers.start([call])
    workers.close()
    begun()
    assert workers.moved is None
    assert workers.start([call])[0]()[0]["pid"].to_pylist() == [os.getpid()]


class _Keeping:
    """An argument that cannot be pickled any more once it is used."""

    kept: Any = None


def _use(batch: Any, argument: _Keeping) -> Any:
    argument.kept = argument.kept or threading.Lock()
    return batch


def test_what_cannot_be_pickled_any_more_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_CallMeter, "take_verdict", lambda _: True)
    stage = MapBatches(_use, fn_args=(_Keeping(),))
    assert may_move(stage)
    plain = read(shuffled())
    batches = read(shuffled().map_batches(_use, fn_args=(_Keeping(),)))
    assert [batch["id"] for batch in batches] == [batch["id"] for batch in plain]
