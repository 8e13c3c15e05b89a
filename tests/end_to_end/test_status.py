"""``windrow status`` and ``windrow timeline`` on a cluster: they tell what is, and the runs do not notice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.conftest import REPOSITORY
from tests.end_to_end.reading import eventually
from windrow.cli.watched_cluster import WatchedCluster, watching
from windrow.core.errors import PlanError

BLOCK_ROWS, WINDOW_BLOCKS, WINDOWS = 100, 2, 6
WINDOW_ROWS = BLOCK_ROWS * WINDOW_BLOCKS
ROWS = WINDOW_ROWS * WINDOWS


def make_pipe(seed: int = 7, epochs: int = 3) -> Any:
    dataset = windrow.range(ROWS, block_rows=BLOCK_ROWS).window(blocks_per_window=WINDOW_BLOCKS)
    pipe = dataset.repeat(epochs).random_shuffle_each_window(seed=seed)
    return pipe.options(executor="ray", progress=False)


def find_address(ray: Any) -> str:
    return str(ray.get_runtime_context().gcs_address)


@pytest.fixture(scope="module")
def child(ray_local: Any) -> Iterator[WatchedCluster]:
    """One child for all tests: to start it takes seconds."""
    with watching(find_address(ray_local)) as cluster:
        yield cluster


@dataclass(frozen=True)
class Observer:
    """Sees the runs that a test has started, and not those of earlier tests that have not ended yet."""

    cluster: WatchedCluster
    others: frozenset[str]

    def runs(self) -> list[dict[str, Any]]:
        return [run for run in self.cluster.status()["pipelines"] if run["id"] not in self.others]

    def find_reported(self, rows: int, state: str = "reading") -> dict[str, Any]:
        """The only run, once it has a state and its trainers have reported that they have received so many rows."""
        found: list[dict[str, Any]] = []

        def has_reported() -> bool:
            found[:] = self.runs()
            return [(run.get("rows"), run.get("state")) for run in found] == [(rows, state)]

        assert eventually(has_reported), (
            rows,
            [(run.get("state"), run.get("problem"), run.get("trainers")) for run in found],
        )
        return found[0]


@pytest.fixture
def observer(child: WatchedCluster) -> Observer:
    return Observer(child, frozenset(run["id"] for run in child.status()["pipelines"]))


def run_command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "windrow", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def iterate(shard: Any, batch_size: int) -> Iterator[list[int]]:
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(batch_size=batch_size):
            yield batch["id"].tolist()


def take(batches: Iterator[list[int]], count: int) -> int:
    return sum(map(len, islice(batches, count)))


def test_windows_rows_and_shards_of_a_run(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    # reports that are sent one after the other can arrive in another order, so all of them say the same
    interval = "windrow.pipeline.shard.run_reader._HEARTBEAT_SECONDS"
    monkeypatch.setattr(interval, 1e9)
    shards = make_pipe().split(2, equal=True)
    readers = [iterate(shard, 50) for shard in shards]
    # in the second epoch: behind two windows the slower shard, behind four the other one
    epoch = ROWS // 2 // 50
    # by turns, since neither can be far ahead
    rows = sum(take(reader, 1) for _ in range(epoch + 4) for reader in readers) + take(readers[1], 4)
    monkeypatch.setattr(interval, 0.0)
    # a batch reports those before it
    more = sum(take(reader, 1) for reader in readers)
    found = observer.find_reported(rows)
    assert (found["epoch"], found["epochs"]) == (1, 3)
    assert (found["window"], found["windows"]) == (2, WINDOWS)
    assert (found["shards"], found["epoch_rows"]) == (2, ROWS)
    received = [(each["shard"], each["rows"]) for each in found["trainers"]]
    assert received == [(0, 50 * (epoch + 4)), (1, 50 * (epoch + 8))]
    assert (found["pid"], found["windrow"]) == (os.getpid(), windrow.__version__)
    assert found["memory_bytes"] > found["held_bytes"] >= 0
    for shard in shards:
        shard.close()
    closed = observer.find_reported(rows + more, "idle")
    # nothing changes any more, so it is the sentence of stats()
    assert closed["limit"] == shards[1].stats().bottleneck.sentence


def test_the_command_shows_several_runs_or_none(ray_local: Any, observer: Observer) -> None:
    pipes = [make_pipe(seed=1), make_pipe(seed=2, epochs=5)]
    shards = [pipe.split(1)[0] for pipe in pipes]
    for shard in shards:
        take(iterate(shard, 100), 1)
    shown = run_command("status", find_address(ray_local))
    found = observer.runs()
    assert [run["epochs"] for run in found] == [3, 5]
    assert re.search(rf"{found[0]['id']} +1/3 .*\n{found[1]['id']} +1/5 ", shown)
    with pytest.raises(PlanError, match="choose one with --pipeline, of") as error:
        observer.cluster.spans(None)
    assert all(run["id"] in str(error.value) for run in found)
    for shard in shards:
        shard.close()
    del shard, shards, pipes
    assert eventually(lambda: not observer.runs()), "a run ends although it is watched"


def test_the_timeline_is_that_of_the_pipeline(ray_local: Any, observer: Observer, tmp_path: Path) -> None:
    pipe = make_pipe(epochs=2)
    shards = pipe.split(2)
    for _ in zip(*(iterate(shard, 50) for shard in shards), strict=True):
        pass
    for shard in shards:
        shard.close()
    own = pipe.timeline()
    (found,) = observer.runs()
    fetched = tmp_path / "run.json"
    run_command("timeline", find_address(ray_local), str(fetched), "--pipeline", found["id"])
    own.save(tmp_path / "own.json")
    assert fetched.read_text() == (tmp_path / "own.json").read_text()
    assert {span.kind for span in own.spans} >= {"map", "reduce", "work"}


def test_rows_and_their_order_do_not_change_while_observers_ask(observer: Observer) -> None:
    with make_pipe().options(executor="threads").iterator() as shard:
        expected = list(iterate(shard, 70))
    stopped, asked = threading.Event(), [0]

    def ask() -> None:
        while not stopped.is_set():
            observer.cluster.status()
            asked[0] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        with make_pipe().iterator() as shard:
            found = list(iterate(shard, 70))
    finally:
        stopped.set()
        thread.join()
    assert found == expected
    assert asked[0] > 3


def test_observing_starts_no_actor_and_takes_no_cpu(ray_local: Any, observer: Observer) -> None:
    from ray._private.state import actors

    def count_cpus(of: Mapping[str, float]) -> float:
        return of.get("CPU", 0.0)

    with make_pipe().iterator() as shard:
        take(iterate(shard, 50), 1)
        before = set(actors())
        for _ in range(3):
            observer.runs()
        assert set(actors()) == before
        every = count_cpus(ray_local.cluster_resources())
        assert eventually(lambda: count_cpus(ray_local.available_resources()) == every)


def test_a_killed_coordinator_is_told(ray_local: Any, observer: Observer) -> None:
    shards = make_pipe().split(1)
    reader = iterate(shards[0], 50)
    rows = take(reader, 3)
    (found,) = observer.runs()
    actor = ray_local.get_actor(found["name"], namespace=found["namespace"])
    ray_local.kill(actor, no_restart=False)
    # it is being restarted, or has been and has no reader again yet: each is an answer
    assert eventually(lambda: [run["restarts"] for run in observer.runs()] == [1])
    rows += take(reader, 10_000)
    assert rows == ROWS * 3
    again = observer.find_reported(rows)
    assert (again["id"], again["pid"], again["started"]) == (found["id"], os.getpid(), found["started"])
    ray_local.kill(actor)
    assert eventually(lambda: not observer.runs()), "the end is seen"


class Older:
    """A coordinator without the methods that observers call."""

    def run_stats(self) -> None:
        """What it has."""


class Busy:
    """A coordinator whose loop does not come to answer."""

    def report(self) -> None:
        threading.Event().wait(60)


def start_fake(ray: Any, kind: type) -> Any:
    name = f"windrow-coordinator-{uuid.uuid4().hex}"
    return ray.remote(kind).options(name=name, num_cpus=0, max_restarts=0).remote()


@pytest.mark.nightly
def test_coordinators_that_cannot_answer_say_why_in_bounded_time(ray_local: Any, observer: Observer) -> None:
    fakes = [start_fake(ray_local, kind) for kind in (Older, Busy)]
    assert eventually(lambda: {run["state"] for run in observer.runs()} == {"unknown", "silent"}, 60)
    found = {run["state"]: run for run in observer.runs()}
    assert "older windrow" in found["unknown"]["problem"]
    assert "no answer within 5 s" in found["silent"]["problem"]
    with pytest.raises(PlanError, match="has no timeline to fetch: it runs an older windrow"):
        observer.cluster.spans(found["unknown"]["id"])
    for fake in fakes:
        ray_local.kill(fake)
    assert eventually(lambda: not observer.runs())
    if not observer.others:
        assert observer.cluster.status()["ended"]["id"] in {run["id"] for run in found.values()}
        assert "ray.kill" in observer.cluster.status()["ended"]["death"]
