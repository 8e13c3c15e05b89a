"""Unit costs of Ray itself: a task, an object, a handle, a call; run as a separate process.

A Ray process has many threads, so its busiest thread limits it. For calls the cost of the other threads is
measured too, because calls are frequent and cores may be few.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.system.ray_cluster import start_ray

# just above the limit for inlining into a reply, so that objects go to the object store
_OBJECT_BYTES = 120_000
_MANY = 64
_STORE_BYTES = 800_000_000


def measure_ray() -> dict[str, float]:
    import ray

    start_ray(_STORE_BYTES, 2, frees_early=False)
    try:
        owner = ray.remote(num_cpus=0)(_Owner).remote()
        ray.get(owner.submit.remote(50, 1))  # starts the workers
        few = min(ray.get(owner.submit.remote(200, 1)) for _ in range(3))
        many = min(ray.get(owner.submit.remote(40, _MANY)) for _ in range(3))
        owner_call, call = _time_calls(owner, 300)
        hand, get = _time_handles(owner, 8)
        wake = ray.get(owner.wake.remote(50, 100))
    finally:
        ray.shutdown()
    per_object = max(0.0, many - few) / (_MANY - 1)
    return {
        "owner_task": few - per_object,
        "owner_object": per_object,
        "owner_handle": max(0.0, hand),
        "owner_call": owner_call,
        "call": call,
        "wake": wake,
        "get": get,
    }


class _Owner:
    """Like the coordinator: an async actor that owns the outputs of its tasks."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    async def submit(self, tasks: int, returns: int) -> float:
        """Seconds of the busiest thread per task with ``returns`` objects in the object store."""
        import ray

        put = ray.remote(num_cpus=1)(_put).options(num_returns=1 + returns)
        began = _read_threads()
        refs = [put.remote(returns) for _ in range(tasks)]
        await asyncio.gather(*(first for first, *_ in refs))
        del refs
        await asyncio.sleep(1.0)
        return _busiest(began, _read_threads()) / tasks

    async def make(self, tasks: int, returns: int) -> None:
        import ray

        put = ray.remote(num_cpus=1)(_put).options(num_returns=1 + returns)
        refs = [put.remote(returns) for _ in range(tasks)]
        await asyncio.gather(*(first for first, *_ in refs))
        self._kept = [ref for _, *others in refs for ref in others]

    async def hand(self) -> list[Any]:
        return self._kept

    async def call(self) -> None:
        """Do nothing."""

    async def used(self) -> dict[str, float]:
        return _read_threads()

    async def wake(self, waiters: int, times: int) -> float:
        """Seconds to wake one of the coroutines that wait for an event with a timeout, as polls do."""
        changed, woken = [asyncio.Event()], [0]

        async def wait() -> None:
            while woken[0] < waiters * times:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed[0].wait(), 1.0)
                woken[0] += 1

        tasks = [asyncio.ensure_future(wait()) for _ in range(waiters)]
        await asyncio.sleep(0.05)
        began = time.process_time()
        while woken[0] < waiters * times:
            event, changed[0] = changed[0], asyncio.Event()
            event.set()
            await asyncio.sleep(0)
        changed[0].set()
        await asyncio.gather(*tasks)
        return (time.process_time() - began) / woken[0]


def _read_threads() -> dict[str, float]:
    used = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            used[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return used


def _busiest(before: dict[str, float], after: dict[str, float]) -> float:
    return max(seconds - before.get(thread, 0.0) for thread, seconds in after.items())


def _put(returns: int) -> list[Any]:
    import numpy as np

    return [None, *(np.zeros(_OBJECT_BYTES, np.uint8) for _ in range(returns))]


def _time_calls(owner: Any, calls: int) -> tuple[float, float]:
    """Core seconds per call: in the owner's busiest thread, and in all other threads of owner and caller."""
    import ray

    before, began = ray.get(owner.used.remote()), time.process_time()
    for _ in range(calls):
        ray.get(owner.call.remote())
    calling = time.process_time() - began
    after = ray.get(owner.used.remote())
    busiest = _busiest(before, after)
    answering = sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())
    return busiest / calls, (calling + answering - busiest) / calls


def _time_handles(owner: Any, rounds: int) -> tuple[float, float]:
    """Core seconds of the owner to return a handle, and of a reader to get its object."""
    import ray

    ray.get(owner.make.remote(16, _MANY))
    count = 16 * _MANY
    before, got, began = ray.get(owner.used.remote()), 0.0, 0.0
    for _ in range(rounds):
        refs = ray.get(owner.hand.remote())
        began = time.process_time()
        ray.wait(refs, num_returns=len(refs))
        values = ray.get(refs)
        got += time.process_time() - began
        del values, refs
    after = ray.get(owner.used.remote())
    return _busiest(before, after) / (rounds * count), got / (rounds * count)


def start() -> Callable[[None], dict[str, float]]:
    return lambda _: measure_ray()
