"""Batches of a pool whose actors or managers do not answer: they go to others, so many times."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from windrow.core.errors import TransformError
from windrow.core.user_functions import ConstructorError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.tasks.map_batches import Call, MapBatches

ray: Any = pytest.importorskip("ray")
pool_calls: Any = pytest.importorskip("windrow.pipeline.executors.ray.pool_calls")
pools: Any = pytest.importorskip("windrow.pipeline.executors.ray.pools")

SENT = pool_calls._Sent([], alone=False)


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

    monkeypatch.setattr(pool_calls, "get_all", get)
    monkeypatch.setattr(time, "sleep", slept.append)
    manager = SimpleNamespace(submit=SimpleNamespace(remote=lambda holder, alone: "reply"))
    workers = pool_calls.RayWorkers(manager, "f", 1)
    if pauses is None:
        with pytest.raises(ray.exceptions.ActorUnavailableError):
            workers._wait("reply", SENT, "f")
        assert slept == []
    else:
        assert workers._wait("reply", SENT, "f") == "rows"
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

    monkeypatch.setattr(pool_calls, "get_all", get)
    numbers = iter(range(10))

    def make() -> Any:
        number = next(numbers)
        submit = SimpleNamespace(remote=lambda holder, alone: number)
        return pool_calls.RayWorkers(SimpleNamespace(submit=submit), "f", 1, make)

    workers = make()
    reply = workers.submit(SENT)
    if lost > 3:
        with pytest.raises(pool_calls._ManagerLostError):
            workers._wait_across_managers(reply, SENT, "f")
    else:
        assert workers._wait_across_managers(reply, SENT, "f") == "rows"


@pytest.mark.parametrize(("lost", "sends"), [(1, 2), (2, 3), (3, 4), (4, 4)])
def test_rows_that_are_lost_with_a_node_are_sent_again(
    monkeypatch: pytest.MonkeyPatch, lost: int, sends: int
) -> None:
    left = [ray.exceptions.ObjectLostError("00" * 28, None, "") for _ in range(lost)]
    sent: list[Any] = []

    def get(references: list[Any], who: str) -> list[Any]:
        if references == ["reply"]:
            return [["result"]]
        if left:
            raise left.pop()
        return [pool_calls.Answers(["rows"], 0.1)]

    def put(calls: Any) -> str:
        sent.append(calls)
        return f"rows {len(sent)}"

    monkeypatch.setattr(pool_calls, "get_all", get)
    monkeypatch.setattr(ray, "put", put)
    submitted: list[Any] = []

    def submit(holder: list[Any], alone: bool) -> str:
        submitted.append((*holder, alone))
        return "reply"

    calls = [SimpleNamespace(where="a batch", skips_failed=False)]
    workers = pool_calls.RayWorkers(SimpleNamespace(submit=SimpleNamespace(remote=submit)), "f", 1)
    (wait,) = workers.start(calls)
    if lost < 4:
        assert wait() == "rows"
    else:
        with pytest.raises(TransformError, match="a batch: the actor's process died repeatedly"):
            wait()
    # then once more, by itself: by now, what the actor had before could have ended it
    expected = [("rows 1", False), ("rows 2", False), ("rows 3", True), ("rows 4", True)]
    assert submitted == expected[:sends]


def make_calls(count: int, *, skips_failed: bool = False) -> list[Call]:
    return [Call(pa.table({"x": [at]}), "here", None, skips_failed) for at in range(count)]


class Actor:
    """Stands in for a pool: its one actor makes calls by a function that returns what it would answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[list[Any]], Any]) -> None:
        self.sent: list[list[int]] = []

        def submit(holder: list[Any], alone: bool) -> str:
            (calls,) = holder
            self.sent.append(calls)
            return f"{len(self.sent) - 1}"

        def get(references: list[Any], who: str) -> list[Any]:
            (reference,) = references
            return [[int(reference)]] if isinstance(reference, str) else [answer(self.sent[reference])]

        monkeypatch.setattr(ray, "put", lambda calls: [call.rows["x"][0].as_py() for call in calls])
        monkeypatch.setattr(pool_calls, "get_all", get)
        manager = SimpleNamespace(submit=SimpleNamespace(remote=submit))
        self.workers = pool_calls.RayWorkers(manager, "f", 1)

    def take(self, calls: list[Call]) -> tuple[list[Any], list[int]]:
        """The results of calls, up to the first error that ends the run, and for which there was an error."""
        made, lost = [], []
        for at, wait in enumerate(self.workers.start(calls)):
            try:
                made.append(wait())
            except TransformError:
                lost.append(at)
                if not calls[at].skips_failed:
                    break
        return made, lost


@pytest.mark.parametrize(
    ("seconds", "size", "expected"),
    [
        ([0.001] * 8, 100, [1, 2, 4, 8, 16, 32, 64, 64]),
        ([0.1] * 3, 100, [1, 2, 2]),
        ([9.0, 0.02, 0.02, 0.02], 100, [1, 1, 2, 4]),
        ([0.001] * 5, 6 * 2**20, [1, 2, 4, 5, 5]),
        ([0.001] * 4 + [0.2] * 2, 100, [1, 2, 4, 8, 16, 1]),
    ],
    ids=["short", "long", "a model is loaded", "large", "longer"],
)
def test_actors_get_several_short_calls_at_a_time(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], size: int, expected: list[int]
) -> None:
    left = list(seconds)
    actor = Actor(
        monkeypatch,
        lambda sent: pool_calls.Answers(sent, left.pop(0) * len(sent), size * len(sent)),
    )
    together = []
    for _ in seconds:
        together.append(actor.workers.calls_together)
        calls = make_calls(together[-1])
        assert actor.take(calls) == (list(range(len(calls))), [])
    assert together == expected


@pytest.mark.parametrize("skips", [False, True])
def test_calls_after_one_that_fails_are_made_where_failed_rows_are_left_out(skips: bool) -> None:
    def fail_at_2(batch: dict[str, Any]) -> dict[str, Any]:
        if 2 in batch["x"]:
            raise ValueError("bad row")
        return {"y": batch["x"] * 10}

    worker = pools._Worker(pools.cloudpickle.dumps(MapBatches(fail_at_2)), "map_batches(f)")
    _, answers = worker.run(make_calls(4, skips_failed=skips))
    made = [each if isinstance(each, Failure) else each[0]["y"].to_pylist() for each in answers.results]
    with pytest.raises(TransformError, match="here: ValueError: bad row"):
        made.pop(2).rethrow()
    assert made == ([[0], [10], [30]] if skips else [[0], [10]])
    assert answers.seconds > 0
    assert answers.size_bytes == (4 + 3) * 8 if skips else (3 + 2) * 8


@pytest.mark.parametrize(("limit", "value"), [("_MOST_SECONDS", 0.0), ("_CALL_BYTES", 1)])
def test_an_actor_answers_after_a_while_and_gets_the_other_calls_again(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(pool_calls, limit, value)
    worker = pools._Worker(
        pools.cloudpickle.dumps(MapBatches(lambda batch: {"y": batch["x"] * 10})), "map_batches(f)"
    )
    calls = make_calls(3)
    actor = Actor(monkeypatch, lambda sent: worker.run(calls[sent[0] :])[1])
    made, _ = actor.take(calls)
    assert [result["y"].to_pylist() for result, _ in made] == [[0], [10], [20]]
    assert actor.sent == [[0, 1, 2], [1, 2], [2]]


def test_batches_without_values_are_measured() -> None:
    """Arrow ends the process if it counts the bytes of a union without values itself."""
    union = pa.UnionArray.from_dense(
        pa.array([], pa.int8()), pa.array([], pa.int32()), [pa.array([], pa.int64())]
    )
    rows = pa.table({"x": pa.ListArray.from_arrays([0, 0, 0], union)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    read = pa.ipc.open_stream(sink.getvalue()).read_all()
    worker = pools._Worker(
        pools.cloudpickle.dumps(MapBatches(lambda table: table, "pyarrow")), "map_batches(f)"
    )
    _, answers = worker.run([Call(read, "here", None, False)])
    ((result, _),) = answers.results
    assert result.equals(rows)


@pytest.mark.parametrize("skips", [False, True])
def test_only_the_batch_that_ends_its_actors_fails(monkeypatch: pytest.MonkeyPatch, skips: bool) -> None:
    def answer(sent: list[int]) -> Any:
        if 2 in sent:
            raise ray.exceptions.ActorDiedError
        return pool_calls.Answers(list(sent), 0.001)

    actor = Actor(monkeypatch, answer)
    actor.workers.pace.calls_together = 8
    assert actor.take(make_calls(4, skips_failed=skips)) == (([0, 1, 3] if skips else [0, 1]), [2])
    assert actor.sent == [[0, 1, 2, 3], [0], [1], [2], [3]][: 5 if skips else 4]
    assert actor.workers.calls_together <= 4, "calls that are too much together are sent one by one at first"


def test_actors_that_cannot_start_are_no_reason_to_leave_rows_out(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(monkeypatch, lambda sent: None)
    refused = Failure.capture(ConstructorError("no actor can start"))
    monkeypatch.setattr(pool_calls, "get_all", lambda references, who: [refused])
    for wait in actor.workers.start(make_calls(2, skips_failed=True)):
        with pytest.raises(ConstructorError, match="no actor can start"):
            wait()
    assert len(actor.sent) == 2
