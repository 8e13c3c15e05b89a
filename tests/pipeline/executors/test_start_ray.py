"""Which Ray is used where the user has started none."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest
import ray
from ray._private import services

from windrow.pipeline.executors.ray import executor
from windrow.pipeline.executors.ray.cluster import find_lost_cluster


def test_a_cluster_that_ended_without_notice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(services, "find_bootstrap_address", lambda _: address)
        assert find_lost_cluster() is None
    # nothing listens there any more
    assert find_lost_cluster() == address
    # one that the user names may be about to start
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert find_lost_cluster() is None


def test_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: None)
    assert find_lost_cluster() is None


def test_another_one_is_started_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options))
    monkeypatch.setattr(executor, "find_lost_cluster", lambda: "127.0.0.1:1")
    executor.start_ray()
    monkeypatch.setattr(executor, "find_lost_cluster", lambda: None)
    executor.start_ray()
    assert [options.get("address") for options in started] == ["local", None]


FORKS = """
import os
import ray
from windrow.pipeline.executors.ray.cluster import ClusterAddress, connect

def show(**options):
    os.write(1, f"{before} {ray.ObjectRef.from_random().hex()}\\n".encode())

ray.init = show
ray.ObjectRef.from_random()
children = []
for _ in range(3):
    if not (child := os.fork()):
        before = ray.ObjectRef.from_random().hex()
        connect(ClusterAddress("127.0.0.1:1"))
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def test_forked_processes_that_connect_draw_other_ids() -> None:
    """Ray ends one of two that connect at the same time with the same random ids, as DataLoader workers did."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    before, after = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert len(before) == 3
    assert len(set(before)) == 1, "Ray draws other ids in forked processes by itself"
    assert len(set(after)) == 3
