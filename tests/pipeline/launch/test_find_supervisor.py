"""Which Ray cluster a job uses, and the address of its first node."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from windrow.core.errors import PlanError
from windrow.pipeline.launch import find_supervisor
from windrow.pipeline.launch.find_supervisor import LOOPBACK, own_ip, running_cluster


def _set_ray(monkeypatch: pytest.MonkeyPatch, *, runs: bool) -> None:
    context = SimpleNamespace(gcs_address="10.1.2.3:6379")
    ray = SimpleNamespace(is_initialized=lambda: runs, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.parametrize("given", [None, "10.9.9.9:6379", "local"])
def test_the_cluster_of_this_process_comes_first(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    _set_ray(monkeypatch, runs=True)
    assert running_cluster() == "10.1.2.3:6379"
    _set_ray(monkeypatch, runs=False)
    assert running_cluster() == (None if given == "local" else given)
    # and where Ray has not been imported
    monkeypatch.delitem(sys.modules, "ray")
    assert running_cluster() == (None if given == "local" else given)


def test_addresses_of_client_servers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_ray(monkeypatch, runs=False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.1.2.3:10001")
    with pytest.raises(PlanError, match=r"RAY_ADDRESS='ray://10.1.2.3:10001' is the address of a Ray client"):
        running_cluster()


def test_a_single_node_uses_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_supervisor, "find_single_node", lambda size: size == 2)
    assert own_ip(2) == LOOPBACK
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert own_ip(3).startswith("127.")
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    assert own_ip(3).count(".") == 3
