"""What this process may use."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from windrow.core import machine


def test_the_machine_has_cores_and_memory() -> None:
    assert 1 <= machine.available_cores() <= (os.cpu_count() or 1)
    assert machine.free_memory_bytes() > 2**20


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("max 100000", None)])
def test_a_control_group_bounds_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.available_cores() == (cores or len(os.sched_getaffinity(0)))


def test_a_control_group_bounds_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000")
    (tmp_path / "memory.current").write_text("400000")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.free_memory_bytes() == 600_000


@pytest.mark.parametrize(
    ("stat", "free"),
    [
        ("anon 1\nactive_file 50000\ninactive_file 300000\n", 900_000),
        ("inactive_file 999999\n", 1_000_000),
        ("anon 1\n", 600_000),
    ],
)
def test_idle_pages_of_files_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stat: str, free: int
) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text(stat)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.free_memory_bytes() == free


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
    assert policy_after(machine.wake_behind_others) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == before
    assert policy_after() == before


@LINUX
def test_a_thread_that_is_scheduled_in_another_way_stays_so() -> None:
    def idle() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    assert policy_after(idle, machine.wake_behind_others) == os.SCHED_IDLE


@LINUX
def test_where_it_is_refused_all_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert policy_after(machine.wake_behind_others) == os.sched_getscheduler(0)
