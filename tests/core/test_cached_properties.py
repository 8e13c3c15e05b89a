"""Cached properties are computed once, and a computation holds up no other instance."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from windrow.core.cached_properties import cached_property

WAIT_SECONDS = 30


class Slow:
    """Has a property whose first computation waits for an event."""

    def __init__(self, *, may_end: threading.Event) -> None:
        self.started, self.may_end = threading.Event(), may_end
        self.computed = 0

    @cached_property
    def value(self) -> int:
        self.computed += 1
        self.started.set()
        assert self.may_end.wait(WAIT_SECONDS)
        return 7


def test_value_is_computed_once() -> None:
    ended = threading.Event()
    ended.set()
    slow = Slow(may_end=ended)
    assert (slow.value, slow.value, slow.computed) == (7, 7, 1)


def test_other_instances_do_not_wait() -> None:
    # as in a forked process, in which the thread that computes is missing, and never ends
    may_end, ended = threading.Event(), threading.Event()
    ended.set()
    first, second = Slow(may_end=may_end), Slow(may_end=ended)
    with ThreadPoolExecutor(2) as threads:
        computing = threads.submit(lambda: first.value)
        assert first.started.wait(WAIT_SECONDS)
        try:
            assert threads.submit(lambda: second.value).result(WAIT_SECONDS / 2) == 7
        finally:
            may_end.set()
        assert computing.result(WAIT_SECONDS) == 7
