"""The worker pool: most urgent first, failures in futures, and nothing left behind."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError
from functools import partial

import pytest

from tests.end_to_end.reading import eventually
from windrow.pipeline.executors import workers as workers_module
from windrow.pipeline.executors.workers import WorkerPool

WAIT_SECONDS = 30


def test_the_most_urgent_first_then_in_the_order_given() -> None:
    pool = WorkerPool(1, "windrow-test")
    go = threading.Event()
    done: list[tuple[tuple[int, ...], int]] = []
    first = pool.submit((9,), lambda: go.wait(WAIT_SECONDS))
    while not first.running():
        pass
    priorities: list[tuple[int, ...]] = [(2,), (1, 5), (1, 0, 7), (2,), (0,)]
    futures = [
        pool.submit(priority, partial(done.append, (priority, i))) for i, priority in enumerate(priorities)
    ]
    go.set()
    for future in futures:
        future.result(WAIT_SECONDS)
    assert done == [((0,), 4), ((1, 0, 7), 2), ((1, 5), 1), ((2,), 0), ((2,), 3)]
    pool.close()


def test_running_work_yields_to_more_urgent_work() -> None:
    pool = WorkerPool(1, "windrow-test")
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def run() -> None:
        begun.set()
        go.wait(WAIT_SECONDS)
        pool.run_urgent((1,))
        done.append("what ran")

    running = pool.submit((2,), run)
    begun.wait(WAIT_SECONDS)
    failing = pool.submit((0,), lambda: 1 // 0)
    urgent = pool.submit((0, 5), partial(done.append, "urgent"))
    other = pool.submit((1,), partial(done.append, "other"))
    go.set()
    for future in (running, other, urgent):
        future.result(WAIT_SECONDS)
    assert done == ["urgent", "what ran", "other"]
    assert isinstance(failing.exception(WAIT_SECONDS), ZeroDivisionError)
    pool.close()


def test_computing_consumer_gets_a_core_and_one_thread_always_works() -> None:
    pool = WorkerPool(3, "windrow-test", cores=3)
    go = threading.Event()
    for consumer in range(3):
        pool.reserve_core(consumer, True)
    futures = [pool.submit((0,), lambda: go.wait(WAIT_SECONDS)) for _ in range(3)]

    def running() -> int:
        return sum(future.running() for future in futures)

    assert eventually(lambda: running() == 1)
    pool.reserve_core(0, True)  # renewed
    pool.reserve_core(1, False)
    time.sleep(0.05)
    assert running() == 1
    pool.reserve_core(2, False)
    assert eventually(lambda: running() == 2)
    pool.reserve_core(0, False)
    assert eventually(lambda: running() == 3)
    go.set()
    assert all(future.result(WAIT_SECONDS) for future in futures)
    pool.close()


@pytest.mark.parametrize(
    ("workers", "cores", "most"), [(4, 16, 4), (4, 2, 2), (2, 2, 1), (1, 1, 1), (3, 2, 2)]
)
def test_as_many_threads_less_as_a_core_has(workers: int, cores: int, most: int) -> None:
    pool = WorkerPool(workers, "windrow-test", cores)
    pool.reserve_core(0, True)
    assert pool._queue._max_busy == most
    pool.reserve_core(0, False)
    assert pool._queue._max_busy == workers
    pool.close()


def test_a_consumer_that_says_nothing_any_more_is_left_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_COMPUTING_SECONDS", 0.3)
    pool = WorkerPool(2, "windrow-test", cores=2)
    go = threading.Event()
    pool.reserve_core(0, True)
    futures = [pool.submit((0,), lambda: go.wait(WAIT_SECONDS)) for _ in range(2)]
    assert eventually(lambda: all(future.running() for future in futures))
    go.set()
    pool.close()


def test_queued_work_continues_when_threads_are_free() -> None:
    pool = WorkerPool(2, "windrow-test", cores=2)
    pool.reserve_core(0, True)
    assert [pool.submit((0,), partial(int, i)).result(WAIT_SECONDS) for i in range(50)] == list(range(50))
    futures = [pool.submit((0,), partial(int, i)) for i in range(50)]
    assert [future.result(WAIT_SECONDS) for future in futures] == list(range(50))
    pool.close()


def test_what_fails_fails_its_future_alone() -> None:
    pool = WorkerPool(1, "windrow-test")
    failing, fine = pool.submit((0,), lambda: 1 // 0), pool.submit((0,), lambda: 7)
    with pytest.raises(ZeroDivisionError):
        failing.result(WAIT_SECONDS)
    assert fine.result(WAIT_SECONDS) == 7
    pool.close()


def test_closing_cancels_what_waits_and_ends_the_threads() -> None:
    before = threading.active_count()
    pool = WorkerPool(2, "windrow-test")
    go = threading.Event()
    running = [pool.submit((0,), lambda: go.wait(WAIT_SECONDS)) for _ in range(2)]
    while not all(future.running() for future in running):
        pass
    waiting = pool.submit((0,), lambda: 1)
    threading.Timer(0.05, go.set).start()
    pool.close()
    with pytest.raises(CancelledError):
        waiting.result(WAIT_SECONDS)
    assert all(future.result(WAIT_SECONDS) for future in running)
    assert pool.submit((0,), lambda: 1).cancelled()
    pool.close()
    assert threading.active_count() <= before + 1  # the timer may be about to end


def test_pool_can_be_closed_from_its_own_thread() -> None:
    pool = WorkerPool(2, "windrow-test")
    pool.submit((0,), pool.close).result(WAIT_SECONDS)
    assert pool.submit((0,), lambda: 1).cancelled()


def test_idle_threads_hold_neither_the_pool_nor_the_last_result() -> None:
    class Result:
        pass

    pool = WorkerPool(1, "windrow-test")
    result = pool.submit((0,), Result).result(WAIT_SECONDS)
    pool.submit((0,), lambda: None).result(WAIT_SECONDS)
    held, of_pool = weakref.ref(result), weakref.ref(pool)
    close = pool.close
    del result
    gc.collect()
    assert held() is None
    close()
    del pool, close
    gc.collect()
    assert of_pool() is None
