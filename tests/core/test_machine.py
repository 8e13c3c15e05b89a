"""What this process may use."""

from __future__ import annotations

import os
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
