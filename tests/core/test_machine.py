"""What this process may use."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import pytest

from windrow.core import machine


def test_the_machine_has_cores_and_memory() -> None:
    assert 1 <= machine.available_cores() <= (os.cpu_count() or 1)
    assert machine.free_memory_bytes() > 2**20


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="how threads wake up can be told on Linux only")


def policy_after(*calls: Callable[[], object]) -> int:
    """How a thread of its own is scheduled after it has made some calls."""
    told: list[int] = []

    def run() -> None:
        for call in calls:
            call()
        told.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    return told[0]


@LINUX
def test_a_thread_that_wakes_behind_others_is_the_only_one_that_does() -> None:
    before = os.sched_getscheduler(0)
    assert policy_after(machine.use_batch_scheduling) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before
    assert policy_after() == before


@LINUX
def test_a_thread_that_is_scheduled_in_another_way_stays_so() -> None:
    def idle() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    assert policy_after(idle, machine.use_batch_scheduling) == os.SCHED_IDLE


@LINUX
def test_refusal_by_the_kernel_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert policy_after(machine.use_batch_scheduling) == os.sched_getscheduler(0)
