"""The clock of phases: nesting, threads that work for another one, and counts of requests."""

from __future__ import annotations

import threading
import time

import pytest

from windrow.core.phase_clock import (
    PhaseClock,
    count_request,
    count_retry,
    counting,
    current_clock,
    measuring,
    phase,
    timed,
)


def spin(seconds: float) -> None:
    """Use a core for some CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_an_inner_phase_does_not_count_in_the_outer_one() -> None:
    clock = PhaseClock()
    began = time.perf_counter()
    with measuring(clock, "shuffle"):
        with phase("decode"), phase("storage"):
            time.sleep(0.02)
        spin(0.01)
    took = time.perf_counter() - began
    assert clock.seconds["storage"] >= 0.02
    assert clock.seconds["shuffle"] >= 0.01
    assert clock.seconds["decode"] < clock.seconds["storage"]
    assert sum(clock.seconds.values()) <= took
    assert clock.cpu_seconds == 0, "it was not asked for"


def test_cpu_time_is_that_outside_of_phases_that_are_aside() -> None:
    clock = PhaseClock(counts_cpu=True)
    spin(0.02)
    with measuring(clock, "shuffle"):
        spin(0.02)
        with phase("decode"):
            spin(0.02)
        with phase("transform", aside=True), phase("storage"), phase("transform", aside=True):
            spin(0.1)
        spin(0.02)
        time.sleep(0.2)
    spin(0.02)
    assert 0.06 <= clock.cpu_seconds < 0.1


def test_an_error_ends_its_phases() -> None:
    clock = PhaseClock()

    def fail() -> None:
        with measuring(clock, "shuffle"), phase("decode"):
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert current_clock() is None
    with phase("decode"):
        time.sleep(0.005)
    assert clock.seconds["decode"] < 0.005, "no longer measured"


def test_a_measured_call_inside_another_has_a_clock_of_its_own() -> None:
    outer, inner = PhaseClock(), PhaseClock()
    with measuring(outer, "shuffle"):
        with measuring(inner, "collate"), phase("device"):
            pass
        assert current_clock() is outer
    assert (set(outer.seconds), set(inner.seconds)) == ({"shuffle"}, {"collate", "device"})


@pytest.mark.parametrize(("lanes", "counted"), [(0, 0.0), (1, 0.02), (2, 0.01)])
def test_threads_count_requests_for_the_measured_one(lanes: int, counted: float) -> None:
    clock = PhaseClock()

    def read() -> None:
        with counting(clock, lanes), phase("storage"):
            count_request(100)
            count_retry()
            time.sleep(0.02)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert (clock.requests, clock.requested_bytes, clock.retries) == (1, 100, 1)
    assert not clock.seconds, "another thread's time is not this one's"
    elsewhere = clock.elsewhere["storage"]
    assert elsewhere >= counted
    assert (elsewhere > 0) == (lanes > 0)


def test_without_a_clock_nothing_is_counted() -> None:
    with phase("storage"):
        count_request(1)
        count_retry()
    assert current_clock() is None


def test_a_timed_call_is_a_phase_that_ends_even_if_it_raises() -> None:
    @timed("decode")
    def fail() -> None:
        with phase("storage"):
            time.sleep(0.02)
        time.sleep(0.01)
        raise ValueError("no")

    clock = PhaseClock()
    with measuring(clock, "shuffle"):
        with pytest.raises(ValueError, match="no"):
            fail()
        time.sleep(0.03)
    assert clock.seconds["storage"] >= 0.02
    assert clock.seconds["decode"] >= 0.01
    assert clock.seconds["shuffle"] >= 0.03
    assert not clock._stack
    assert timed("decode")(max)(1, 2) == 2, "a thread without a clock"
