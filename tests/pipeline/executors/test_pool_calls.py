"""Batches of a pool whose actors or managers do not answer: they go to others, so many times."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from windrow.core.errors import TransformError

ray: Any = pytest.importorskip("ray")
pools: Any = pytest.importorskip("windrow.pipeline.executors.ray.pools")


@pytest.mark.parametrize(("message", "pauses"), [("failed to connect", [1.0, 2.0]), ("Socket closed", None)])
def test_a_batch_whose_actor_is_not_reached_goes_to_another_one(
    monkeypatch: pytest.MonkeyPatch, message: str, pauses: list[float] | None
) -> None:
    """Ray's own repetitions are over before it sees that a node has died; they have to do where a process has died."""
    unreached = [ray.exceptions.ActorUnavailableError(f"RpcError: {message} to it", None) for _ in range(2)]
    slept: list[float] = []

    def get(references: list[Any], who: str) -> list[Any]:
        if references == ["reply"]:
            return [["result"]]
        if unreached:
            raise unreached.pop()
        return ["rows"]

    monkeypatch.setattr(pools, "get_all", get)
    monkeypatch.setattr(time, "sleep", slept.append)
    manager = SimpleNamespace(submit=SimpleNamespace(remote=lambda holder: "reply"))
    workers = pools.RayWorkers(manager, "f", 1)
    if pauses is None:
        with pytest.raises(ray.exceptions.ActorUnavailableError):
            workers._wait("reply", ["call"], "f")
        assert slept == []
    else:
        assert workers._wait("reply", ["call"], "f") == "rows"
        assert slept == pauses


@pytest.mark.parametrize("lost", [0, 3, 4])
def test_a_batch_follows_its_pool_to_the_next_coordinators(
    monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Each coordinator that dies takes its pools with it, and another one can die while the batch is on its way."""

    def get(references: list[Any], who: str) -> list[Any]:
        if references == ["result"]:
            return ["rows"]
        (number,) = references
        if number < lost:
            raise ray.exceptions.ActorDiedError
        return [["result"]]

    monkeypatch.setattr(pools, "get_all", get)
    numbers = iter(range(10))

    def make() -> Any:
        number = next(numbers)
        submit = SimpleNamespace(remote=lambda holder: number)
        return pools.RayWorkers(SimpleNamespace(submit=submit), "f", 1, make)

    workers = make()
    reply = workers.manager.submit.remote(["call"])
    if lost > 3:
        with pytest.raises(pools._ManagerLostError):
            workers._wait_across_managers(reply, ["call"], "f")
    else:
        assert workers._wait_across_managers(reply, ["call"], "f") == "rows"


@pytest.mark.parametrize("lost", [1, 2])
def test_rows_that_are_lost_with_a_node_are_sent_again(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    left = [ray.exceptions.ObjectLostError("00" * 28, None, "") for _ in range(lost)]
    sent: list[Any] = []

    def get(references: list[Any], who: str) -> list[Any]:
        if references == ["reply"]:
            return [["result"]]
        if left:
            raise left.pop()
        return ["rows"]

    def put(call: Any) -> str:
        sent.append(call)
        return f"rows {len(sent)}"

    monkeypatch.setattr(pools, "get_all", get)
    monkeypatch.setattr(pools.ray, "put", put)
    submitted: list[Any] = []

    def submit(holder: list[Any]) -> str:
        submitted.append(*holder)
        return "reply"

    call = SimpleNamespace(where="a batch")
    workers = pools.RayWorkers(SimpleNamespace(submit=SimpleNamespace(remote=submit)), "f", 1)
    wait = workers.start(call)
    if lost == 1:
        assert wait() == "rows"
    else:
        with pytest.raises(TransformError, match="a batch: the actor's process died repeatedly"):
            wait()
    assert submitted == ["rows 1", "rows 2"]
