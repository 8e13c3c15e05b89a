"""Batches prepared ahead in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

from windrow.pipeline.shard import prefetcher
from windrow.pipeline.shard.prefetcher import Prefetcher


def count_to(stop: int, closed: threading.Event) -> Generator[int, None, None]:
    try:
        yield from range(stop)
    finally:
        closed.set()


def test_items_come_in_order_and_end() -> None:
    assert list(Prefetcher(count_to(100, threading.Event()), 3)) == list(range(100))


def test_an_error_comes_in_the_place_of_its_item() -> None:
    def fail() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no second")

    items = Prefetcher(fail(), 2)
    assert next(items) == 1
    with pytest.raises(ValueError, match="no second"):
        next(items)


def test_closing_ends_the_generator() -> None:
    closed = threading.Event()
    items = Prefetcher(count_to(10**9, closed), 2)
    assert next(items) == 0
    items.close()
    assert closed.wait(10)


def test_it_runs_at_most_its_depth_ahead() -> None:
    made: list[int] = []

    def note() -> Generator[int, None, None]:
        for i in range(10):
            made.append(i)
            yield i

    items = Prefetcher(note(), 2)
    assert next(items) == 0
    # one was taken, two are ready, one more waits to be put
    assert len(made) <= 4
    assert list(items) == list(range(1, 10))


def test_ready_items_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetcher, "_READY_BYTES", 25)
    made: list[int] = []
    waiting = threading.Event()

    def note() -> Generator[int, None, None]:
        for size in (10, 10, 10, 10, 99, 1):
            made.append(size)
            if len(made) == 3:
                waiting.set()
            yield size

    items = Prefetcher(note(), 5, lambda size: size)
    assert waiting.wait(10)
    # two are ready, and the third waits to be put
    time.sleep(0.05)
    assert made == [10, 10, 10]
    # a single item may be larger
    assert list(items) == [10, 10, 10, 10, 99, 1]


def test_closing_wakes_a_consumer_that_waits() -> None:
    waits, closed = threading.Event(), threading.Event()

    def wait() -> Generator[int, None, None]:
        waits.set()
        closed.wait(10)
        yield 1

    items = Prefetcher(wait(), 1)
    found: list[object] = []
    consumer = threading.Thread(target=lambda: found.append(next(items, "ended")))
    consumer.start()
    assert waits.wait(10)
    items._ready.close()
    consumer.join(10)
    closed.set()
    assert found == ["ended"]
