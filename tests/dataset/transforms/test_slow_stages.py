"""A stage that is ten times slower than those before it holds them within the promised bytes."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

import windrow

ROWS, BLOCKS = 10_000_000, 200
LIMIT = 64 * 2**20
# of the worker process, and of the runs that it works on
PROCESS_BYTES = {"in a process": 80 * 2**20, "behind the shuffle in a process": 160 * 2**20}
_FAST_SECONDS, _SLOW_SECONDS = 0.001, 0.01


class Counted:
    """Rows that have left the fast stage and not yet the slow one, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._between = 0
        self.most = 0

    def add(self, rows: int) -> None:
        with self._lock:
            self._between += rows
            self.most = max(self.most, self._between)


COUNTED = Counted()


def fast(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(_FAST_SECONDS)
    COUNTED.add(len(batch["id"]))
    return {"id": batch["id"], "x": batch["id"] * 0.5}


def slow(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(_SLOW_SECONDS)
    COUNTED.add(-len(batch["id"]))
    return batch


class Slow:
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return slow(batch)


@pytest.mark.parametrize(
    "where",
    [
        "in the same task",
        "in a process",
        "behind the shuffle",
        "behind the shuffle in a process",
        "in the consumer",
    ],
)
def test_a_slow_stage_holds_back_a_fast_one(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "COUNTED", Counted())
    # 800 kB a block, 160 MB in all
    dataset = windrow.range(ROWS).repartition(BLOCKS).map_batches(fast)
    if where == "in the same task":
        dataset = dataset.map_batches(slow)
    if where == "in a process":
        dataset = dataset.map_batches(Slow, compute=windrow.ActorPool(1))
    pipe = dataset.window(blocks_per_window=10).random_shuffle_each_window(seed=7)
    if where == "behind the shuffle":
        pipe = pipe.map_batches(slow, batch_size=50_000)
    if where == "behind the shuffle in a process":
        pipe = pipe.map_batches(Slow, compute=windrow.ActorPool(1))
    limit = LIMIT + PROCESS_BYTES.get(where, 0)
    pipe = pipe.options(executor="threads", memory_limit=limit, progress=False)
    found = 0
    for batch in pipe.iter_batches(batch_size=50_000):
        if where == "in the consumer":
            slow(batch)
        elif "process" in where:
            # what it counts there stays there
            COUNTED.add(-len(batch["id"]))
        found += len(batch["id"])
    assert found == ROWS
    assert 0 < 16 * COUNTED.most <= LIMIT
