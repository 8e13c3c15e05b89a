"""The coordinator actor: an error in a one-way call fails the job, and the last shard removes the cache files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.laws.cases import Case
from windrow.pipeline.executors.ray import coordinator as module
from windrow.pipeline.executors.ray.coordinator import Coordinator
from windrow.pipeline.executors.ray.executor import RayExecutor
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.tasks.cache.disk_cache import DiskCache


def play(script: Callable[[Coordinator], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        program = Program(Case((10,)).job("ray"), 1, False, (0,))
        await script(Coordinator(program, RayExecutor().resources(), ((None,),)))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("inside", "name", "arguments"),
    [
        ("_core", "note_delivered", (8.0,)),
        ("_core", "acknowledge", (0, "token", None)),
        ("_core", "heartbeat", (0, TrainerStats(0))),
        ("_core", "close_shard", (0, "token")),
        ("_dispatcher", "note_heartbeat", (0, 0)),
        ("_dispatcher", "tick", ()),
        ("_core", "tick", ()),
    ],
)
def test_failure_of_an_unawaited_call_ends_the_run(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch, inside: str, name: str, arguments: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.01)

    async def script(coordinator: Coordinator) -> None:
        failures: list[Exception] = []
        calls: list[str] = []

        def fail(*args: Any) -> None:
            calls.append(name)
            raise ArithmeticError(f"of {name}")

        monkeypatch.setattr(coordinator._core, "fail", failures.append)
        monkeypatch.setattr(getattr(coordinator, inside), name, fail)
        if name == "tick":
            coordinator._start_ticking()
            for _ in range(3_000):
                if len(calls) > 2:
                    break
                await asyncio.sleep(0.01)
            assert len(calls) > 2, "ticking goes on"
        elif name == "note_heartbeat":
            await coordinator.task_heartbeat(coordinator._incarnation, *arguments)
        else:
            await getattr(coordinator, name)(*arguments)
        assert {str(error) for error in failures} == {f"of {name}"}

    play(script)


def test_files_are_removed_although_a_copy_of_a_task_never_ends(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[float] = []
    monkeypatch.setattr(module, "_LAST_TASKS_SECONDS", 0.2)

    def remove(disk: Any) -> list[Any]:
        removed.append(time.monotonic())
        return []

    monkeypatch.setattr(module, "remove_on_all_nodes", remove)

    async def script(coordinator: Coordinator) -> None:
        held = asyncio.Event()

        async def wait() -> None:
            await held.wait()

        coordinator.spawn(wait())
        disk = DiskCache("", "", "", None, persistent=False)
        await asyncio.wait_for(coordinator._remove_files(disk), 10)
        assert len(removed) == 1
        # and once more when what it may have written is there
        held.set()
        while len(removed) < 2:
            await asyncio.sleep(0.01)

    play(script)
