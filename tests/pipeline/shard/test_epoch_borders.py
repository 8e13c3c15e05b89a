"""From one epoch to the next: runs placed ahead are used where they fit, and released where not."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.end_to_end.reading import eventually
from tests.laws.cases import BlocksSource, Case
from windrow.core.errors import PlanError, StallError, TransformError
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors import threads_job
from windrow.pipeline.executors.base import Pace, WindowData
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.executors.threads_job import ThreadsClient
from windrow.pipeline.plan import memory_budget, program
from windrow.pipeline.shard import prefetch_loop
from windrow.pipeline.shard.epoch_runs import EpochRuns, PlacedRun
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard
from windrow.pipeline.tasks import map_task
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.task import Task
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = pytest.mark.timeout(60)

CASE = Case((40, 40), WindowCut(blocks_per_window=1), epochs=4, batch_rows=4)
# the whole epoch has fewer runs than are placed ahead
TINY = Case((4,), epochs=4, batch_rows=4)


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (program, memory_budget):
        monkeypatch.setattr(module, "RUN_BYTES", 100)


def _open(case: Case = CASE, *, workers: int = 2, **changes: Any) -> list[Shard]:
    job = replace(case.job(ThreadsExecutor(workers)), **changes)
    return open_shards(job, case.shards, equal=case.equal)


def _read(batches: Iterator[Any]) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def _placed(shard: Shard, epoch: int) -> int:
    return sum(span.kind == "reduce" and span.epoch == epoch for span in shard.stats().spans)


@pytest.mark.parametrize("case", [CASE, TINY], ids=["some", "tiny"])
def test_only_the_next_epoch_is_placed_before_it_is_requested(case: Case) -> None:
    (shard,) = _open(case)
    with shard:
        for epoch in range(4):
            assert _read(shard.iter_batches(4)) == case.assigned(epoch).batches[0]
            if epoch == 3:
                break
            assert eventually(lambda epoch=epoch: _placed(shard, epoch + 1) > 0)  # type: ignore[misc]
            time.sleep(0.05)
            assert _placed(shard, epoch + 1) <= 2
            assert _placed(shard, epoch + 2) == 0


def test_one_thread_goes_through_all_epochs_and_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        begun.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    (shard,) = _open()
    with shard:
        for _ in range(4):
            list(shard.iter_batches(4))
        assert begun.count("windrow-shard-0") == 1
        assert eventually(lambda: not _loop_threads())


@pytest.mark.parametrize("batch_rows", [64, 20, 10])
def test_epochs_whose_last_windows_hold_nothing_of_any_step_follow_each_other(batch_rows: int) -> None:
    case = Case((10,) * 10, WindowCut(blocks_per_window=1), epochs=4, batch_rows=batch_rows)
    (shard,) = _open(case)
    with shard:
        for epoch in range(4):
            batches = shard.iter_batches(batch_rows, drop_last=True)
            whole = case.assigned(epoch).batches[0][: 100 // batch_rows]
            # without reading the end behind them
            assert [next(batches)["x"].tolist() for _ in whole] == whole
            del batches


def _loop_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "windrow-shard-0"]


def _take_all(shard: Shard) -> None:
    """Take every batch, but not the end behind them."""
    batches = shard.iter_batches(4)
    for _ in range(20):
        next(batches)


def _leave(shard: Shard) -> None:
    batches = shard.iter_batches(4)
    next(batches)
    batches.close()


def _forget(shard: Shard) -> None:
    next(shard.iter_batches(4))


WAYS: dict[str, tuple[Callable[[Shard], Any], bool]] = {
    "read": (lambda shard: list(shard.iter_batches(4)), True),
    "read ahead by more": (lambda shard: list(shard.iter_batches(4, prefetch_batches=20)), False),
    "taken all": (_take_all, True),
    "read in another format": (lambda shard: list(shard.iter_batches(4, batch_format="pandas")), True),
    "read in other batches": (lambda shard: list(shard.iter_batches(7)), False),
    "read without the rest": (lambda shard: list(shard.iter_batches(4, drop_last=True)), False),
    "left": (_leave, False),
    "forgotten": (_forget, False),
    "skipped": (lambda shard: shard.skip_batches(20, batch_size=4), False),
    "loaded": (lambda shard: shard.load_state_dict(shard.state_dict()), False),
}


@pytest.mark.parametrize("waits", [True, False], ids=["placed ahead", "at once"])
@pytest.mark.parametrize("way", WAYS)
def test_next_epoch_is_complete_after_any_use_of_the_last(way: str, waits: bool) -> None:
    do, goes_on = WAYS[way]
    (shard,) = _open()
    with shard:
        list(shard.iter_batches(4))
        if waits:
            assert eventually(lambda: _placed(shard, 1) > 0)
        do(shard)
        epoch = 1 if way == "loaded" else 2
        kept = shard._connection.prefetch_loop
        if waits and goes_on:
            assert eventually(lambda: _placed(shard, 2) > 0)
        assert _read(shard.iter_batches(4)) == CASE.assigned(epoch).batches[0]
        assert (shard._connection.prefetch_loop is kept) == goes_on
        assert _read(shard.iter_batches(4)) == CASE.assigned(epoch + 1).batches[0]


@pytest.mark.parametrize("waits", [True, False], ids=["placed ahead", "at once"])
@pytest.mark.parametrize("size", [4, 8])
def test_shards_start_the_next_epoch_alike_or_raise(size: int, waits: bool) -> None:
    case = replace(CASE, shards=2, equal="pad", sizes=(40, 39))
    first, second = _open(case)
    with first, second:
        for shard, rows in zip((first, second), case.assigned(0).batches, strict=True):
            assert _read(shard.iter_batches(4)) == rows
        if waits:
            assert eventually(lambda: _placed(second, 1) > 0)
        theirs = first.iter_batches(size)
        if size != 4:
            with pytest.raises(PlanError, match=r"epoch 1 is being read with batch_size=8"):
                second.iter_batches(4)
        assert _read(second.iter_batches(size)) == case.assigned(1, size).batches[1]
        assert _read(theirs) == case.assigned(1, size).batches[0]
        for shard, rows in zip((first, second), case.assigned(2).batches, strict=True):
            assert _read(shard.iter_batches(4)) == rows


def test_error_of_the_next_epoch_is_raised_there(monkeypatch: pytest.MonkeyPatch) -> None:
    was_read, repaired = threading.Event(), threading.Event()
    run_task = map_task.run_task

    def fail_in_the_next(context: Any, task: Task, *args: Any) -> Any:
        if task.work.epoch == 1 and not repaired.is_set():
            assert was_read.wait(20)
            raise TransformError("once is enough")
        return run_task(context, task, *args)

    monkeypatch.setattr(threads_job, "run_task", fail_in_the_next)
    # otherwise a core is left to the computing consumer, and the waiting task could hold the only other worker
    monkeypatch.setattr(Pace, "computes", False)
    one_window = replace(CASE, cut=WindowCut())
    (shard,) = _open(one_window)
    with shard:
        assert _read(shard.iter_batches(4)) == one_window.assigned(0).batches[0]
        was_read.set()
        with pytest.raises(TransformError, match="once is enough"):
            list(shard.iter_batches(4))
        repaired.set()
        assert _read(shard.iter_batches(4)) == one_window.assigned(1).batches[0]


def test_a_consumer_that_pauses_between_epochs_holds_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_loop, "_RELEASE_SECONDS", 0.05)
    (shard,) = _open()
    with shard:
        for epoch in range(3):
            assert _read(shard.iter_batches(4)) == CASE.assigned(epoch).batches[0]
            assert eventually(lambda epoch=epoch: _placed(shard, epoch + 1) > 0)  # type: ignore[misc]
            assert eventually(lambda: not _held_map_outputs())


def _held_map_outputs() -> list[Any]:
    windows = [thing for thing in gc.get_objects() if type(thing) is WindowData]
    return [map_output for window in windows for map_outputs in window.slices for map_output in map_outputs]


def test_shard_dropped_between_epochs_ends_its_prefetch_loop() -> None:
    (shard,) = _open()
    list(shard.iter_batches(4))
    assert _loop_threads()
    del shard
    gc.collect()
    assert eventually(lambda: not _loop_threads())


def test_epochs_that_are_over_are_forgotten() -> None:
    gc.collect()
    others = _held_epochs()
    (shard,) = _open(replace(TINY, epochs=30))
    with shard:
        for _ in range(20):
            list(shard.iter_batches(4))
        gc.collect()
        # those of other tests are not this one's
        assert sum(runs not in others for runs in _held_epochs()) <= 3


def _held_epochs() -> list[EpochRuns]:
    return [thing for thing in gc.get_objects() if type(thing) is EpochRuns]


def test_closing_a_shard_releases_its_runs_even_if_iterators_live() -> None:
    (shard,) = _open()
    iterators = []
    for _ in range(3):
        iterators.append(shard.iter_batches(4))
        assert len(list(iterators[-1])) == 20
    assert eventually(lambda: _placed(shard, 3) > 0)
    iterators.append(shard.iter_batches(4))
    next(iterators[-1])
    shard.close()
    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) is PlacedRun] == []


def test_runs_that_do_not_fit_the_old_batches_are_placed_again() -> None:
    seen: set[int] = set()

    def lose_values_the_second_time(table: pa.Table) -> pa.Table:
        rows = set(table["x"].to_pylist())
        if not seen & rows:
            seen.update(rows)
            return table
        return table.set_column(0, "x", pa.nulls(table.num_rows, pa.int64()))

    stage = MapBatches(lose_values_the_second_time, batch_format="pyarrow", preserves_rows=True)
    for batch_format in ("numpy", "pyarrow"):
        seen.clear()
        # one worker, which takes the first epoch's task first
        (shard,) = _open(replace(TINY, epochs=2), workers=1, before=(stage,))
        with shard:
            assert len(list(shard.iter_torch_batches(4))) == 1
            assert eventually(lambda shard=shard: _placed(shard, 1) > 0)  # type: ignore[misc]
            if batch_format == "pyarrow":
                (batch,) = shard.iter_batches(4, batch_format="pyarrow")
                assert batch["x"].null_count == 4
            else:
                with pytest.raises(PlanError, match="null"):
                    list(shard.iter_torch_batches(4))


def test_the_end_of_an_epoch_is_known_however_many_repeated_rows_end_it() -> None:
    # all rows pass the filter, but that is not known beforehand: to report its position, a shard waits for the end
    case = Case((41,), batch_rows=8, shards=4, equal="pad")
    shards = _open(case, source=BlocksSource((41,), keeps=lambda _: True))
    iterators = [shard.iter_batches(8) for shard in shards]
    for step in range(2):
        for shard, batches, rows in zip(shards, iterators, case.assigned(0).batches, strict=True):
            assert next(batches)["x"].tolist() == rows[step]
            assert (shard.state_dict()["epoch"], shard.state_dict()["row"]) == [(0, 32), (1, 0)][step]
    for shard in shards:
        shard.close()


def test_a_shard_that_is_closed_while_it_opens_an_epoch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    open_epoch = ThreadsClient.open_epoch

    def close_meanwhile(self: ThreadsClient, *args: Any, **named: Any) -> EpochFacts:
        facts = open_epoch(self, *args, **named)
        shard.close()
        return facts

    monkeypatch.setattr(ThreadsClient, "open_epoch", close_meanwhile)
    (shard,) = _open()
    with pytest.raises(PlanError, match="was closed while epoch 0 was being read"):
        list(shard.iter_batches(4))
    assert eventually(lambda: not _loop_threads())


def test_waiting_reader_learns_that_reading_has_ended() -> None:
    (shard,) = _open(replace(CASE, epochs=60))
    with shard:
        for number in range(50):
            batches, ended = shard.iter_batches(4), threading.Event()
            consumer = threading.Thread(target=_read_until_the_end, args=(batches, ended))
            consumer.start()
            time.sleep(number * 1e-4)
            batches.close()
            assert ended.wait(20)
            consumer.join()


def _read_until_the_end(batches: Iterator[Any], ended: threading.Event) -> None:
    try:
        with suppress(StallError, ValueError):
            for _ in batches:
                pass
    finally:
        ended.set()
