"""Ray that does not start in time is started again; any other failure is an error at once."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest

from windrow.core.errors import PlanError
from windrow.pipeline.executors.ray import start_supervisor as starting
from windrow.pipeline.executors.ray import supervisor

SLOW = {
    "error": "The current node timed out during startup. This could happen because some of the Ray processes"
}
READY = {"host": "10.0.0.1", "port": 7, "address": "10.0.0.1:8"}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the next supervisors answer."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(starting, "_start", lambda config, auth_token, is_head: given.pop(0))
    return given


def test_a_slow_start_is_tried_again(answers: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    answers += [SLOW, SLOW, READY]
    with caplog.at_level(logging.WARNING):
        assert starting.start_supervisor("10.0.0.1").port == 7
    assert caplog.text.count("did not start in time") == 2


def test_not_for_ever(answers: list[dict[str, Any]]) -> None:
    answers += [SLOW, SLOW, SLOW, READY]
    with pytest.raises(
        PlanError, match=r"cannot start Ray for all ranks on 10.0.0.1: The current node timed out"
    ):
        starting.start_supervisor("10.0.0.1")
    assert answers == [READY]


def test_other_failures_are_errors_at_once(answers: list[dict[str, Any]]) -> None:
    answers += [{"error": "no permission"}, READY]
    with pytest.raises(PlanError, match="no permission"):
        starting.start_supervisor("10.0.0.1")
    assert answers == [READY]


def test_a_failed_supervisor_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_RUN", "import sys; sys.stdin.readline(); sys.exit(3)")
    config = {"path": [], "script": "", "ip": "127.0.0.1"}
    assert starting._start(config, "", is_head=True) == {"error": "the supervisor ended with exit code 3"}


def test_a_supervisor_whose_starter_has_ended_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Supervisor:
        def __init__(self, config: object) -> None: ...

        def start(self) -> dict[str, str]:
            return {"address": "here"}

        def serve(self) -> None:
            calls.append("serve")

        def end(self) -> None:
            calls.append("end")

    monkeypatch.setattr(supervisor, "_Supervisor", Supervisor)
    monkeypatch.setattr(supervisor, "_Config", lambda **given: SimpleNamespace(**given))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    read, write = os.pipe()
    os.close(read)
    supervisor.main({"ready": write})
    assert calls == ["end"]
