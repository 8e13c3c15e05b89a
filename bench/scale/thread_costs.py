"""Core seconds a byte on threads, each piece of work by itself with all cores busy at it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, TypeVar

from bench.machine import count_cores
from bench.scale.rows import Plan, make_plan
from windrow.core.memory import BufferPool
from windrow.pipeline.tasks import run_task
from windrow.shuffle.place import place_rows

__all__ = ["measure_threads"]

T = TypeVar("T")
_ROUNDS = 6
_BATCH_ROWS = 65_536


def measure_threads(paths: list[str]) -> dict[str, float]:
    """What decoding, grouping, placing and consuming cost here."""
    plan, pool = make_plan(paths, 1, _BATCH_ROWS), BufferPool(2**33)
    with ThreadPoolExecutor(count_cores()) as threads:
        decode = _typical(lambda: _time_all(threads, lambda task: _decode(plan, task), plan.tasks))
        pieces: list[Any] = []

        def map_all() -> list[float]:
            pieces.clear()
            return _time_all(threads, lambda task: pieces.extend(_map(plan, task, pool)), plan.tasks)

        mapped, runs = _typical(map_all), plan.layout.runs(0)
        place = _typical(lambda: _time_all(threads, lambda run: _place(pieces, run, pool), runs))
        consume = _typical(lambda: _consume(plan, pieces, pool))
    size = plan.decoded_bytes
    return {
        # in a task a column is grouped at once, which can take less than decoding and keeping it
        "decode": min(decode, mapped) / size,
        "group": max(0.0, mapped - decode) / size,
        "put": 0.0,
        "place": place / size,
        "consume": consume / size,
        "task": 0.0,
        "run": 0.0,
    }


def _typical(measure: Callable[[], list[float]]) -> float:
    """The sum of what each item took, the median of rounds behind one that touches new memory."""
    rounds = [measure() for _ in range(_ROUNDS + 1)][1:]
    return sum(statistics.median(times) for times in zip(*rounds, strict=True))


def _time_all(threads: ThreadPoolExecutor, call: Callable[[T], Any], items: Iterable[T]) -> list[float]:
    """The core seconds of each call, as many at once as there are threads."""

    def timed(item: T) -> float:
        began = time.thread_time()
        call(item)
        return time.thread_time() - began

    return list(threads.map(timed, items))


def _decode(plan: Plan, task: Any) -> None:
    for address in task.addresses:
        for part in plan.program.context.reader.parts(address):
            for column in range(len(part.schema)):
                part.select([column])


def _map(plan: Plan, task: Any, pool: BufferPool) -> list[Any]:
    output: Any = run_task(plan.program.context, task, None, pool)[1]
    return list(chain.from_iterable(chain.from_iterable(output)))


def _place(pieces: list[Any], run: Any, pool: BufferPool) -> Any:
    return place_rows(pieces, run.index, run.rows, pieces[0].schema, pool)


def _consume(plan: Plan, pieces: list[Any], pool: BufferPool) -> list[float]:
    """What a trainer's own thread does: tensors of a run, and looking at every key."""
    from windrow.pipeline.tensors.columns import TensorSpec, to_tensors

    seconds, spec = [], TensorSpec(None, None, None, "numpy", None)
    for run in plan.layout.runs(0):
        rows = _place(pieces, run, pool)
        began = time.thread_time()
        next(iter(to_tensors(rows, spec).values())).numpy().copy()
        seconds.append(time.thread_time() - began)
    return seconds


if __name__ == "__main__":
    print(json.dumps(measure_threads(sys.argv[1:])))
