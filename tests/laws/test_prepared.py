"""Transforms in worker processes: the rows, random numbers and states of a run without them, also where some die."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from tests.pipeline.executors.processes import functions
from windrow.pipeline.executors.processes import stages
from windrow.pipeline.executors.processes.pool import ProcessWorkers
from windrow.pipeline.tasks.map_batches import MapBatches

_SHARED: dict[Any, ProcessWorkers] = {}


@pytest.fixture(autouse=True)
def _shared_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that serve all examples, since starting some for each would take most of the time."""

    class Lasting(ProcessWorkers):
        def close(self) -> None:
            """Stay for the next example."""

    def start(stage: MapBatches, cores: int, spare: int) -> MapBatches:
        if stage.pool is None:
            return stage
        key = stage.fn, stage.batch_size
        if key not in _SHARED:
            _SHARED[key] = Lasting(stage, stage.pool.sizes(cores))
        return replace(stage, workers=_SHARED[key])

    monkeypatch.setattr(stages, "_start", start)
    yield
    while _SHARED:
        ProcessWorkers.close(_SHARED.popitem()[1])


def rows_of(batches: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in _as_rows(batch)]


def _as_rows(batch: dict[str, Any]) -> list[dict[str, Any]]:
    columns = {name: values.tolist() for name, values in batch.items() if name != "pixels"}
    return (
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if columns
        else []
    )


def read_in_turns(shards: list[windrow.Shard], batch_size: int, epochs: list[list[Any]]) -> None:
    """Append the rows of all steps of all shards, epoch by epoch."""
    iterators = [shard.iter_epochs() for shard in shards]
    for parts in zip(*iterators, strict=True):
        steps = itertools.zip_longest(*[part.iter_batches(batch_size) for part in parts], fillvalue={})
        epochs.append([row for step in steps for row in rows_of(step)])


@examples(25)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    window=st.integers(1, 3),
    epochs=st.integers(1, 2),
    seed=st.integers(0, 99),
    call_rows=st.sampled_from([None, 1, 7]),
    shards=st.integers(1, 3),
    stop=st.integers(0, 12),
    resumed=st.integers(1, 3),
    kills=st.booleans(),
)
def test_a_run_is_the_same_as_without_processes(
    sizes: list[int],
    window: int,
    epochs: int,
    seed: int,
    call_rows: int | None,
    shards: int,
    stop: int,
    resumed: int,
    kills: bool,
) -> None:
    rows = sum(sizes)

    def make(compute: Any) -> windrow.DatasetPipeline:
        pipe = windrow.range(rows).repartition(len(sizes)).window(blocks_per_window=window).repeat(epochs)
        pipe = pipe.random_shuffle_each_window(seed=seed).options(executor="threads", progress=False)
        return pipe.map_batches(functions.augment, rng=True, batch_size=call_rows, compute=compute)

    # six rows a step, whatever the number of shards
    expected: list[list[Any]] = []
    read_in_turns(make("tasks").split(1, equal=False), 6, expected)
    found: list[list[Any]] = []
    read_in_turns(make("processes").split(shards, equal=False), 6 // shards, found)
    assert [sorted(epoch) for epoch in found] == [sorted(epoch) for epoch in expected]

    with make("processes").iterator() as shard:
        batches = iter(shard.iter_batches(6))
        taken = []
        for step in range(min(stop, rows // 6)):
            taken += rows_of([next(batches)])
            if kills and step == 1:
                pids = [worker.pid for pool in _SHARED.values() for worker in list(pool._workers)]
                # 0: it has no process now
                for pid in filter(None, pids):
                    os.kill(pid, signal.SIGKILL)
        state = shard.state_dict()
    rest: list[list[Any]] = []
    read_in_turns(make("processes").split(resumed, equal=False, state_dict=state), 6 // resumed, rest)
    if taken and len(rest) == epochs:
        rest[0] = taken + rest[0]
    elif taken:
        rest = [taken, *rest]
    assert [sorted(epoch) for epoch in rest] == [sorted(epoch) for epoch in expected]
