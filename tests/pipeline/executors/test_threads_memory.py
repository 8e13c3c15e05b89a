"""Which memory the threads executor retains for the next window."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.laws.cases import Case
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.executors import threads_job
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan import memory_budget, program
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard import waits
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut

ROWS, BLOCKS, TEXT_BYTES = 100, 4, 500
_DECODED_BYTES = ROWS * BLOCKS * 8


def lengthen(batch: dict[str, Any]) -> pa.Table:
    return pa.table({**batch, "text": np.full(len(batch["x"]), "x" * TEXT_BYTES)})


def test_memory_of_blocks_that_turn_out_larger_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (program, memory_budget):
        monkeypatch.setattr(module, "RUN_BYTES", 100)
    monkeypatch.setattr(memory_budget, "_WORK_BYTES", 0)
    case = Case((ROWS,) * BLOCKS, WindowCut(), epochs=1)
    job = replace(case.job("threads"), before=(MapBatches(lengthen),))
    shard_client: Any = (
        ThreadsExecutor(1).session(Program(job, 1, False, (0,)), None).shard_client(0, 5, job.seed)
    )
    try:
        facts = shard_client.open_epoch(Cursor(), Batching(5))
        data = shard_client.window(0, 0, threading.Event())
        text_bytes = sum(
            map_output.others.nbytes for map_outputs in data.slices for map_output in map_outputs
        )
        assert text_bytes > ROWS * BLOCKS * TEXT_BYTES > 10 * _DECODED_BYTES
        promised = shard_client.run_stats(spans=False).estimated_bytes
        del data
        shard_client.acknowledge(Place(0, facts.windows))
        gc.collect()
        assert text_bytes / 2 < shard_client.pool.idle_bytes < promised
    finally:
        shard_client.close()


def test_pool_keeps_no_more_memory_than_the_run_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "estimated_bytes", 2**60)
    limit_bytes = 2**30
    case = Case((ROWS,) * BLOCKS, WindowCut(), epochs=1)
    job = case.job("threads")
    job = replace(job, options=replace(job.options, memory_limit=limit_bytes))
    shard_client: Any = (
        ThreadsExecutor(1).session(Program(job, 1, False, (0,)), None).shard_client(0, 5, job.seed)
    )
    try:
        shard_client.open_epoch(Cursor(), Batching(5))
        assert shard_client.window(0, 0, threading.Event()) is not None
        assert limit_bytes // 2 < shard_client.pool._limit_bytes <= limit_bytes
    finally:
        shard_client.close()


@pytest.mark.parametrize("how", ["close", "load_state_dict"])
def test_a_shard_keeps_no_run_that_it_has_left(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    jobs: list[weakref.ref[Any]] = []
    start = threads_job.RunningJob.__init__

    def note(job: Any, *args: Any) -> None:
        jobs.append(weakref.ref(job))
        start(job, *args)

    monkeypatch.setattr(threads_job.RunningJob, "__init__", note)
    # each batch waits for a run of its own
    monkeypatch.setattr(waits, "_MIN_SECONDS", 0.0)
    for module in (program, memory_budget):
        monkeypatch.setattr(module, "RUN_BYTES", 4_000)
    pipe = windrow.range(20_000).repeat(2).random_shuffle_each_window(seed=7).options(executor="threads")
    with pipe.iterator() as shard:
        batches = shard.iter_batches(batch_size=500)
        for _ in range(20):
            next(batches)
        state = shard.state_dict()
        del batches
        if how == "close":
            shard.close()
        else:
            shard.load_state_dict(state)
        gc.collect()
        assert [job() for job in jobs] == [None]
