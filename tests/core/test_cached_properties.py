"""Cached properties are computed once, and a computation holds up no other instance."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from windrow.core.cached_properties import cached_property

WAIT_SECONDS = 30
# Garbage collection, in which other threads run, asks for the property while another computation of it is under way.
ASKED_IN_COLLECTIONS = """
import gc
from windrow.core.cached_properties import cached_property

class Thing:
    def __init__(self):
        self.first = 1

    @cached_property
    def value(self):
        return [2]

current, asked = None, []
def ask(phase, _):
    global current
    if phase == "start" and current is not None:
        thing, current = current, None
        asked.append(thing.value)

gc.callbacks.append(ask)
gc.set_threshold(1)
things = [Thing() for _ in range(200)]
for current in things:
    thing = current
    assert thing.value == [2]
current = None
gc.set_threshold(700)
assert asked
assert all(thing.__dict__ == {"first": 1, "value": [2]} for thing in things)
del things, thing
gc.collect()
"""


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


def test_a_collection_in_between_does_no_harm() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED_IN_COLLECTIONS], capture_output=True, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, done.stderr[-1000:]
