"""How a shard on Ray closes at the coordinator, and closes again once its pending calls are answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dataset.example_sources import make_source
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors.base import CoordinatorClient
from windrow.pipeline.executors.ray import client, coordinator_calls, fetch_thread
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.shard_assignment import ShardAssignment

WAIT_SECONDS = 10.0
FACTS = EpochFacts(0, 0, 3, ShardAssignment(1, 4, False, False), 4, None)


class Coordinator:
    """Hands out a name for each answer; `answered` holds those that have arrived."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered: set[str] = set()
        self.closed: list[tuple[Any, ...]] = []
        self.polled = threading.Event()
        self.open_epoch = SimpleNamespace(remote=lambda *_: self._ask("open"))
        self.poll = SimpleNamespace(remote=lambda *_: self._ask("poll"))
        self.acknowledge = SimpleNamespace(remote=lambda *_: None)
        self.close_shard = SimpleNamespace(remote=self._close)

    def _close(self, shard: int, token: str, stats: object = None) -> str:
        self.closed.append((shard, token))
        return "closed"

    def _ask(self, kind: str) -> str:
        self.asked.append(f"{kind} {len(self.asked)}")
        if kind == "poll":
            self.polled.set()
        return self.asked[-1]

    def wait(self, refs: Sequence[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        """What `ray.wait` does."""
        assert num_returns == len(refs)
        deadline = time.monotonic() + timeout
        while not self.answered.issuperset(refs) and time.monotonic() < deadline:
            time.sleep(0.005)
        return [ref for ref in refs if ref in self.answered], [
            ref for ref in refs if ref not in self.answered
        ]


def connect(monkeypatch: pytest.MonkeyPatch) -> tuple[CoordinatorClient, Coordinator]:
    """A shard that has opened its epoch and waits for the answer to its first question."""
    coordinator = Coordinator()
    ray = SimpleNamespace(is_initialized=lambda: True, wait=coordinator.wait)
    monkeypatch.setattr(coordinator_calls, "ray", ray)
    coordinator.answered.add("open 0")
    monkeypatch.setattr(client, "await_answer", lambda ref, who, waiting: FACTS)
    monkeypatch.setattr(client, "this_node", lambda: "node")
    monkeypatch.setattr(
        fetch_thread, "await_answer_until", lambda ref, who, stopped: stopped.wait(WAIT_SECONDS) and None
    )
    program = Program(Job(make_source(10)), 1, False, (0,))
    shard_client = client.RayClient(coordinator, program, 0, 4, seed=7, client=0)
    shard_client.open_epoch(Cursor(), Batching(4))
    assert coordinator.polled.wait(WAIT_SECONDS)
    return shard_client, coordinator


def wait_until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not found():
        assert time.monotonic() < deadline, "it has not come to that in time"
        time.sleep(0.01)


@pytest.mark.parametrize("last", ["poll 1", "open 2"])
def test_it_closes_again_once_all_that_it_asked_is_answered(
    monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Ray replays unanswered calls to a restarted coordinator, but not the answered close."""
    shard_client, coordinator = connect(monkeypatch)
    shard_client.open_next(Cursor(epoch=1), Batching(4))
    shard_client.close()
    assert len(coordinator.closed) == 1
    for question in sorted(["poll 1", "open 2"], key=last.__eq__):
        time.sleep(0.05)
        assert len(coordinator.closed) == 1, "a question is open yet"
        coordinator.answered.add(question)
    wait_until(lambda: len(coordinator.closed) == 2)
    assert coordinator.closed[0] == coordinator.closed[1]


def test_it_closes_once_where_no_question_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shard_client, coordinator = connect(monkeypatch)
    coordinator.answered.add("poll 1")
    threads = set(threading.enumerate())
    shard_client.close()
    assert len(coordinator.closed) == 1
    assert set(threading.enumerate()) <= threads
