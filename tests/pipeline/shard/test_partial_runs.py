"""Runs with large rows are placed in portions, which readers cannot observe."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.end_to_end.reading import eventually
from windrow.pipeline.plan.program import RUN_BYTES
from windrow.pipeline.shard import partial_runs, prefetch_loop
from windrow.pipeline.shard.partial_runs import Portions
from windrow.shuffle.order.runs import Run

RUN = Run(slice=0, index=0, place=30, rows=100)


def stop_of(portions: Portions, row_bytes: float, start: int = 0) -> int:
    return portions.stop(replace(RUN, skip=start), run_rows=100, batch_rows=10, row_bytes=row_bytes)


@pytest.mark.parametrize(
    ("start", "row_bytes", "stop"),
    [
        (0, 0.0, 100),
        (0, RUN_BYTES / 50, 100),
        (0, RUN_BYTES / 49, 40),
        (60, RUN_BYTES / 49, 100),
        (0, RUN_BYTES, 10),
        (0, 100.0 * RUN_BYTES, 10),
        # up to the end of a batch
        (3, RUN_BYTES, 10),
        (95, RUN_BYTES, 100),
    ],
)
def test_portions_are_whole_batches(start: int, row_bytes: float, stop: int) -> None:
    assert stop_of(Portions(is_transformed=False), row_bytes, start) == stop


def test_prefetched_runs_are_made_in_few_portions() -> None:
    assert stop_of(Portions(is_transformed=False, min_batches=4), RUN_BYTES) == 40


def test_until_transformed_rows_have_been_measured_portions_are_small() -> None:
    found = Portions(is_transformed=True)
    assert stop_of(found, 1.0) == 10
    batch = _batch(10, 1000)
    assert found.measure(batch) == pytest.approx(1000, rel=0.1)
    assert found.measure(batch) is None
    assert found.measure(_batch(10, 1100)) is None
    assert found.measure(_batch(10, 2000)) == pytest.approx(2000, rel=0.1)
    assert stop_of(found, 1.0) == 100
    found.measure(_batch(1, RUN_BYTES))
    assert stop_of(found, 1.0) == 10


def _batch(rows: int, width: int) -> Any:
    return pa.record_batch({"x": pa.array([b"x" * width] * rows)})


def lengthen(batch: dict[str, np.ndarray]) -> dict[str, Any]:
    return {"x": batch["x"], "text": ["text" * int(x) for x in batch["x"]]}


def read(pipe: Any, shards: int, equal: Any, batch_size: int) -> list[Any]:
    return [
        [
            {name: values.tolist() for name, values in batch.items()}
            for batch in shard.iter_batches(batch_size)
        ]
        for shard in pipe.split(shards, equal=equal)
    ]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize(("shards", "equal", "batch_size"), [(1, False, 7), (2, True, 3), (3, "pad", 4)])
def test_portions_change_no_batch(
    monkeypatch: pytest.MonkeyPatch, shards: int, equal: Any, batch_size: int, filtered: bool, after: bool
) -> None:
    ds = windrow.from_items([{"x": x} for x in range(100)], target_block_bytes=80)
    if filtered:
        ds = ds.map_batches(lambda batch: {"x": batch["x"][batch["x"] % 3 > 0]}, preserves_rows=False)
    ds = ds if after else ds.map_batches(lengthen)
    pipe = ds.window(blocks_per_window=4).repeat(2).random_shuffle_each_window(seed=3)
    pipe = (pipe.map_batches(lengthen) if after else pipe).options(executor="threads")
    expected = read(pipe, shards, equal, batch_size)
    monkeypatch.setattr(partial_runs, "RUN_BYTES", 1)
    assert read(pipe, shards, equal, batch_size) == expected


def _is_longer(items: list[int], length: int) -> bool:
    return len(items) > length


def test_evicted_window_continues_within_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    release: list[int] = []
    drop = prefetch_loop.PrefetchLoop._release

    def note(self: Any, data: Any) -> None:
        release.append(1)
        drop(self, data)

    monkeypatch.setattr(partial_runs, "RUN_BYTES", 1)
    monkeypatch.setattr(prefetch_loop, "_RELEASE_SECONDS", 0.02)
    monkeypatch.setattr(prefetch_loop.PrefetchLoop, "_release", note)
    pipe = windrow.from_items([{"x": x} for x in range(60)]).map_batches(lengthen).repeat(1)
    pipe = pipe.random_shuffle_each_window(seed=3).options(executor="threads")
    expected = [batch["x"].tolist() for batch in pipe.iter_batches(4)]
    release.clear()
    found = []
    for batch in pipe.iter_batches(4):
        found.append(batch["x"].tolist())
        if len(found) % 5 == 0:
            held = len(release)
            assert eventually(partial(_is_longer, release, held)) or len(found) > 10
    assert found == expected
    assert len(release) >= 2
