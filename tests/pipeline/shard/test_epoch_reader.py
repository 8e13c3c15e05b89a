"""Batches prepared ahead in a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from windrow.pipeline.shard.epoch_reader import Prefetcher


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
