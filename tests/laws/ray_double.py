"""A test double of Ray in this process: actors with an event loop, tasks on threads, objects as futures.

It implements the part of Ray that windrow uses between a shard and its coordinator, so that thousands of runs
of the real coordinator and client take seconds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from windrow.pipeline.executors.base import Session
from windrow.pipeline.executors.ray import (
    client,
    cluster,
    coordinator,
    coordinator_calls,
    executor,
    fetch_thread,
    pools,
    ray_task,
    replica_places,
)
from windrow.pipeline.executors.ray.placement import Node
from windrow.pipeline.executors.ray.task_dispatch import Submitted
from windrow.pipeline.plan.job import Launch, Resources
from windrow.pipeline.plan.program import Program

__all__ = ["DoubledRayExecutor", "doubled_ray"]

_NODE = "0" * 40
_WORKERS = 2


class _Ref:
    """A reference; the object exists once its future is done."""

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def __await__(self) -> Any:
        return asyncio.wrap_future(self.future).__await__()


class _RayDouble:
    """The object that windrow's modules use as ``ray``."""

    exceptions = ray.exceptions
    ObjectRef = ray.ObjectRef

    def __init__(self) -> None:
        self._tasks = concurrent.futures.ThreadPoolExecutor(_WORKERS, "windrow-double-task")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="windrow-double-actor")
        self._thread.start()

    def stop(self) -> None:
        """Stop its threads; later actor calls are ignored."""
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._tasks.shutdown()

    # --- Ray's functions

    def is_initialized(self) -> bool:
        return not self._loop.is_closed()

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": _NODE, "Alive": True}]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(_WORKERS)}

    available_resources = cluster_resources

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(
            get_node_id=lambda: _NODE, get_worker_id=lambda: "1" * 40, was_current_actor_reconstructed=False
        )

    def put(self, value: Any) -> _Ref:
        ref = _Ref()
        ref.future.set_result(value)
        return ref

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        if not isinstance(refs, list):
            try:
                return refs.future.result(timeout)
            except concurrent.futures.TimeoutError:
                raise ray.exceptions.GetTimeoutError from None
        return [self.get(ref, timeout) for ref in refs]

    def wait(
        self, refs: Sequence[_Ref], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[_Ref], list[_Ref]]:
        everything = num_returns == len(refs)
        concurrent.futures.wait(
            [ref.future for ref in refs],
            timeout,
            concurrent.futures.ALL_COMPLETED if everything else concurrent.futures.FIRST_COMPLETED,
        )
        ready = [ref for ref in refs if ref.future.done()][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    # --- tasks and actors

    def submit(
        self, function: Callable[..., list[Any]], arguments: Sequence[Any], returns: int
    ) -> list[_Ref]:
        """Run a function as a task; references in its arguments are replaced by their objects."""
        refs = [_Ref() for _ in range(returns)]

        def run() -> None:
            try:
                values = function(*(self.get(x) if isinstance(x, _Ref) else x for x in arguments))
            except BaseException as error:
                for ref in refs:
                    ref.future.set_exception(error)
            else:
                for ref, value in zip(refs, values, strict=True):
                    ref.future.set_result(value)

        self._tasks.submit(run)
        return refs

    def start(self, make: Callable[[], Any]) -> Any:
        """Create an actor within its event loop; returns its handle."""

        async def begin() -> Any:
            return make()

        actor = asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        return _Handle(actor, self._loop)


@dataclass(frozen=True)
class DoubledRayExecutor:
    """The Ray executor's coordinator and shards on the test double."""

    double: _RayDouble

    @property
    def name(self) -> str:
        return "ray"

    def resources(self, launch: Launch = Launch()) -> Resources:
        return Resources("ray", _WORKERS, 2**30, limit_covers_all=False)

    def session(self, program: Program, hints: Sequence[Any] | None) -> Session:
        nodes = ((None,),) * program.shards
        actor = self.double.start(lambda: coordinator.Coordinator(program, self.resources(), nodes))
        return executor.RaySession(actor, program)


class _Handle:
    """An actor handle; methods run in its event loop in the order of the calls."""

    def __init__(self, actor: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._actor, self._loop = actor, loop
        # an event loop does not keep its tasks alive
        self._calls: list[asyncio.Task[None]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)

        def remote(*args: Any, **kwargs: Any) -> _Ref:
            ref = _Ref()

            async def call() -> None:
                try:
                    value = method(*args, **kwargs)
                    ref.future.set_result(await value if inspect.isawaitable(value) else value)
                except BaseException as error:
                    ref.future.set_exception(error)

            try:
                self._loop.call_soon_threadsafe(lambda: self._calls.append(self._loop.create_task(call())))
            except RuntimeError:
                ref.future.set_exception(ray.exceptions.ActorDiedError())
            return ref

        return SimpleNamespace(remote=remote)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def doubled_ray() -> Iterator[DoubledRayExecutor]:
    """Make windrow's modules use the test double of Ray; yields an executor on it."""
    double = _RayDouble()

    def submit_task(
        context: Any, task: Any, tables: Any, cached: Sequence[Any], *, heartbeat: Any, **options: Any
    ) -> Submitted:
        layouts = task.ordering.layouts if task.ordering else ()
        slices = layouts[0].slices if layouts else 1
        stop = 1 + max(1, len(layouts)) * slices
        refs = double.submit(
            ray_task._run, ([context], task, heartbeat, tables, *cached), stop + len(task.keeps)
        )
        outputs = [refs[1 + i * slices : 1 + (i + 1) * slices] for i in range(len(layouts))]
        return Submitted(refs[0], outputs if layouts else refs[1], refs[stop:])

    with pytest.MonkeyPatch.context() as patch:
        try:
            used = (
                cluster,
                coordinator_calls,
                client,
                coordinator,
                executor,
                fetch_thread,
                pools,
                ray_task,
                replica_places,
            )
            for module in used:
                patch.setattr(module, "ray", double)
            patch.setattr(coordinator, "submit_task", submit_task)
            patch.setattr(coordinator, "export_code", lambda: None)
            patch.setattr(coordinator, "remove_on_all_nodes", lambda disk: [])
            patch.setattr(coordinator, "others_hold_cpus", lambda cpus: False)
            patch.setattr(coordinator, "list_nodes", lambda: [Node(_NODE, _WORKERS, _WORKERS)])
            patch.setattr(ray_task, "sending_heartbeats", lambda heartbeat: nullcontext())
            patch.setattr(ray_task, "yielding_cpu", nullcontext)
            yield DoubledRayExecutor(double)
        finally:
            # before the real Ray is restored, which a late tick of the coordinator would start
            double.stop()
