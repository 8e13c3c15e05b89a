"""Calls of a function as Ray tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.reading import eventually
from windrow.core.errors import PlanError, StallError
from windrow.pipeline.executors.base import Waiting

# Most of these run at night: four tests of this folder have failed in a process that ran them before. Whether
# they were the reason is not known.
CPUS = 4


def call_on_ray(*args: Any) -> Any:
    from windrow.pipeline.executors.ray.data.remote_calls import call_on_ray

    return call_on_ray(*args)


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call has a second copy, a second after the first."""
    from windrow.pipeline.executors.ray.data import call_dispatch
    from windrow.pipeline.executors.ray.placement import Placement, Planner

    class Doubling(Planner):
        def is_due(self, now: float) -> bool:
            return True

        def review(self, now: float, nodes: Any = None) -> list[tuple[int, int, Placement]]:
            tasks = [(key, task) for key, task in self._tasks.items() if len(task.copies) == 1]
            return [(key, 1, self._add(task, Placement(0.0), now)) for key, task in tasks]

    monkeypatch.setattr(call_dispatch, "Planner", Doubling)


class FirstAndSecond:
    """A call whose first copy ends after the second, which fails for some arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> str:
        try:
            (self.folder / f"{name} begun").touch(exist_ok=False)
        except FileExistsError:
            (self.folder / f"{name} overtakes").touch()
            if name.startswith("fails"):
                raise PlanError("on purpose") from None
            return "second"
        deadline = time.monotonic() + 60
        while not (self.folder / f"{name} overtakes").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(2)
        (self.folder / f"{name} ended").touch()
        return "first"


@pytest.mark.usefixtures("doubled")
def test_the_first_answer_counts_and_no_copy_runs_when_that_is_returned(
    ray_local: Any, tmp_path: Path
) -> None:
    assert call_on_ray(FirstAndSecond(tmp_path), ["a", "b"], str) == ["second", "second"]
    assert (tmp_path / "a ended").exists()
    assert (tmp_path / "b ended").exists()


@pytest.mark.usefixtures("doubled")
def test_a_copy_that_fails_waits_for_the_other_that_runs(ray_local: Any, tmp_path: Path) -> None:
    """Two that write the same file can disturb each other."""
    assert call_on_ray(FirstAndSecond(tmp_path), ["fails"], str) == ["first"]


def test_started_calls_finish_when_another_call_fails(ray_local: Any, tmp_path: Path) -> None:
    """An interrupt in the middle of an import would break the module for all later tasks of the worker."""

    def call(name: str) -> None:
        if name == "fails":
            deadline = time.monotonic() + 60
            while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            raise PlanError("on purpose")
        (tmp_path / "begun").touch()
        for _ in range(100):
            time.sleep(0.02)
        (tmp_path / "ended").touch()

    with pytest.raises(PlanError, match="on purpose"):
        call_on_ray(call, ["works", "fails"], str)
    assert (tmp_path / "ended").exists()


def test_error_of_cancelling_does_not_hide_its_reason(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("no owner found for object")

    def call(number: int) -> None:
        if number == 0:
            raise PlanError("on purpose")
        time.sleep(0.2)

    monkeypatch.setattr(ray_local, "cancel", refuse)
    with pytest.raises(PlanError, match="on purpose"):
        call_on_ray(call, list(range(3 * CPUS)), str)


@pytest.fixture
def holders(ray_local: Any) -> Iterator[list[Any]]:
    """Actors that hold every CPU."""

    class Holder:
        def wait(self) -> None:
            """Until it has been started."""

    def all_free() -> bool:
        return bool(ray_local.available_resources().get("CPU", 0) == CPUS)

    assert eventually(all_free, 60)
    actors = [ray_local.remote(Holder).options(num_cpus=1).remote() for _ in range(CPUS)]
    ray_local.get([actor.wait.remote() for actor in actors], timeout=60)
    yield actors
    for actor in actors:
        ray_local.kill(actor)
    assert eventually(all_free, 60)


class NoteCpus:
    """A call that returns the CPUs that it was given, after a while."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int) -> float:
        import ray

        (self.folder / f"{number}").touch()
        time.sleep(0.3)
        return float(ray.get_runtime_context().get_assigned_resources().get("CPU", 0.0))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:no CPU of the cluster is free:RuntimeWarning")
def test_cpu_is_requested_again_once_one_is_free(ray_local: Any, tmp_path: Path, holders: list[Any]) -> None:
    calls = 16 * CPUS

    def free() -> None:
        # beyond those that had been submitted before it was known that no CPU is free
        if eventually((tmp_path / f"{6 * CPUS}").exists, 60):
            for holder in holders:
                ray_local.kill(holder)

    freeing = threading.Thread(target=free, name="test-free")
    freeing.start()
    cpus = call_on_ray(NoteCpus(tmp_path), list(range(calls)), str)
    freeing.join(60)
    assert cpus[0] == 0.0
    assert cpus[6 * CPUS] == 0.0
    assert set(cpus[-CPUS:]) == {1.0}


@pytest.mark.filterwarnings("ignore:no CPU of the cluster is free:RuntimeWarning")
def test_nothing_is_submitted_any_more_once_a_call_has_failed(
    ray_local: Any, tmp_path: Path, holders: list[Any]
) -> None:
    """Also not in the places of calls that have ended since, where they share cores."""

    def call(number: int) -> None:
        (tmp_path / f"{number} begun").touch()
        if number == 0:
            raise PlanError("on purpose")
        time.sleep(1)
        (tmp_path / f"{number} ended").touch()

    with pytest.raises(PlanError, match="on purpose"):
        call_on_ray(call, list(range(3 * CPUS)), str)
    begun = {path.name for path in tmp_path.glob("* begun")}
    assert len(begun) <= CPUS
    time.sleep(2)
    assert {path.name for path in tmp_path.glob("* begun")} == begun
    assert len(list(tmp_path.glob("* ended"))) == len(begun) - 1


@pytest.mark.filterwarnings("ignore:a wait waits for Ray to fetch:RuntimeWarning")
def test_an_object_that_cannot_be_fetched_is_an_error(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray counts an object as ready whose spill file is deleted, and waits for it indefinitely."""
    from windrow.pipeline.executors.ray import coordinator_calls

    class Never:
        def wait(self) -> None:
            time.sleep(600)

    never = ray_local.remote(Never).options(num_cpus=0).remote()
    monkeypatch.setattr(coordinator_calls, "Waiting", lambda: Waiting(0.1, 0.3))
    monkeypatch.setattr(ray_local, "wait", lambda refs, **_: (refs, []))
    try:
        with pytest.raises(StallError, match=r"a wait waits for Ray to fetch 1 objects .* spill"):
            coordinator_calls.get_all([never.wait.remote()], "a wait")
    finally:
        ray_local.kill(never)


@pytest.mark.filterwarnings("ignore:1 calls that are not needed any more:RuntimeWarning")
def test_a_stall_is_warned_of_and_then_an_error(ray_local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from windrow.pipeline.executors.ray import coordinator_calls

    monkeypatch.setattr(coordinator_calls, "Waiting", lambda: Waiting(1.0, 3.0))

    def call(_: int) -> None:
        time.sleep(5)

    with (
        pytest.warns(RuntimeWarning, match=r"part 7 and 0 more calls wait for Ray: 1 of them run.*CPUs free"),
        pytest.raises(StallError, match="part 7 and 0 more calls wait for Ray"),
    ):
        call_on_ray(call, [7], "part {}".format)
