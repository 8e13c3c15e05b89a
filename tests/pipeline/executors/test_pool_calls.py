"""Batches of a pool whose actors or managers do not answer: they go to others, so many times."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from windrow.core.errors import TransformError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.tasks.map_batches import Call, MapBatches

ray: Any = pytest.importorskip("ray")
pool_calls: Any = pytest.importorskip("windrow.pipeline.executors.ray.pool_calls")
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
            return [(["result"], False)]
        if unreached:
            raise unreached.pop()
        return ["rows"]

    monkeypatch.setattr(pool_calls, "get_all", get)
    monkeypatch.setattr(time, "sleep", slept.append)
    manager = SimpleNamespace(submit=SimpleNamespace(remote=lambda holder: "reply"))
    workers = pool_calls.RayWorkers(manager, "f", 1)
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
        return [(["result"], False)]

    monkeypatch.setattr(pool_calls, "get_all", get)
    numbers = iter(range(10))

    def make() -> Any:
        number = next(numbers)
        submit = SimpleNamespace(remote=lambda holder: number)
        return pool_calls.RayWorkers(SimpleNamespace(submit=submit), "f", 1, make)

    workers = make()
    reply = workers.manager.submit.remote(["call"])
    if lost > 3:
        with pytest.raises(pool_calls._ManagerLostError):
            workers._wait_across_managers(reply, ["call"], "f")
    else:
        assert workers._wait_across_managers(reply, ["call"], "f") == "rows"


@pytest.mark.parametrize("lost", [1, 2])
def test_rows_that_are_lost_with_a_node_are_sent_again(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    left = [ray.exceptions.ObjectLostError("00" * 28, None, "") for _ in range(lost)]
    sent: list[Any] = []

    def get(references: list[Any], who: str) -> list[Any]:
        if references == ["reply"]:
            return [(["result"], False)]
        if left:
            raise left.pop()
        return [pool_calls.Answers(["rows"], 0.1)]

    def put(calls: Any) -> str:
        sent.append(calls)
        return f"rows {len(sent)}"

    monkeypatch.setattr(pool_calls, "get_all", get)
    monkeypatch.setattr(ray, "put", put)
    submitted: list[Any] = []

    def submit(holder: list[Any]) -> str:
        submitted.append(*holder)
        return "reply"

    calls = [SimpleNamespace(where="a batch", skips_failed=False)]
    workers = pool_calls.RayWorkers(SimpleNamespace(submit=SimpleNamespace(remote=submit)), "f", 1)
    (wait,) = workers.start(calls)
    if lost == 1:
        assert wait() == "rows"
    else:
        with pytest.raises(TransformError, match="a batch: the actor's process died repeatedly"):
            wait()
    assert submitted == ["rows 1", "rows 2"]


@pytest.mark.parametrize(
    ("seconds", "size", "idle", "expected"),
    [
        ([0.001] * 8, 100, [False] * 8, [1, 2, 4, 8, 16, 32, 64, 64, 64]),
        ([0.1] * 3, 100, [False] * 3, [1, 2, 2, 2]),
        ([9.0, 0.02, 0.02], 100, [False] * 3, [1, 1, 2, 4]),
        ([0.001] * 4, 3 * 2**20, [False] * 4, [1, 2, 4, 5, 5]),
        ([0.001] * 6, 100, [False] * 4 + [True] * 2, [1, 2, 4, 8, 16, 8, 4]),
    ],
    ids=["short", "long", "a model is loaded", "large", "idle actors"],
)
def test_actors_get_several_short_calls_at_a_time(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], size: int, idle: list[bool], expected: list[int]
) -> None:
    """Until some have nothing to do, or what they get is large or takes a quarter of a second."""
    idle, seconds = list(idle), list(seconds)
    monkeypatch.setattr(ray, "put", lambda calls: len(calls))

    def get(references: list[Any], who: str) -> list[Any]:
        (reference,) = references
        if isinstance(reference, str):
            return [([int(reference)], idle.pop(0))]
        return [pool_calls.Answers(list(range(reference)), seconds.pop(0) * reference, size)]

    monkeypatch.setattr(pool_calls, "get_all", get)
    manager = SimpleNamespace(submit=SimpleNamespace(remote=lambda holder: str(*holder)))
    workers = pool_calls.RayWorkers(manager, "f", 1)
    together = []
    for _ in expected:
        together.append(workers.together)
        if seconds:
            waits = workers.start([SimpleNamespace(where="a batch", skips_failed=False)] * workers.together)
            assert [wait() for wait in waits] == list(range(len(waits)))
    assert together == expected


@pytest.mark.parametrize("skips", [False, True])
def test_calls_after_one_that_fails_are_made_where_failed_rows_are_left_out(skips: bool) -> None:
    def fail_at_2(batch: dict[str, Any]) -> dict[str, Any]:
        if 2 in batch["x"]:
            raise ValueError("bad row")
        return {"y": batch["x"] * 10}

    worker = pools._Worker(pools.cloudpickle.dumps(MapBatches(fail_at_2)))
    calls = [Call(pa.table({"x": [at]}), "here", None, skips) for at in range(4)]
    _, answers = worker.run(calls)
    made = [each if isinstance(each, Failure) else each[0]["y"].to_pylist() for each in answers.results]
    with pytest.raises(TransformError, match="here: ValueError: bad row"):
        made.pop(2).rethrow()
    assert made == ([[0], [10], [30]] if skips else [[0], [10]])
    assert answers.seconds > 0


@pytest.mark.parametrize("skips", [False, True])
def test_only_the_batch_that_ends_its_actors_is_left_out(
    monkeypatch: pytest.MonkeyPatch, skips: bool
) -> None:
    monkeypatch.setattr(ray, "put", lambda calls: calls)

    def get(references: list[Any], who: str) -> list[Any]:
        (reference,) = references
        if not isinstance(reference, tuple):
            return [([tuple(reference)], False)]
        rows = [call.rows for call in reference]
        if 2 in rows:
            raise ray.exceptions.ActorDiedError
        return [pool_calls.Answers(rows, 0.1)]

    monkeypatch.setattr(pool_calls, "get_all", get)
    manager = SimpleNamespace(submit=SimpleNamespace(remote=lambda holder: holder[0]))
    workers = pool_calls.RayWorkers(manager, "f", 1)
    waits = workers.start([SimpleNamespace(where="here", rows=at, skips_failed=skips) for at in range(4)])
    made, lost = [], []
    for at, wait in enumerate(waits):
        try:
            made.append(wait())
        except TransformError:
            lost.append(at)
    assert (made, lost) == (([0, 1, 3], [2]) if skips else ([], [0, 1, 2, 3]))
