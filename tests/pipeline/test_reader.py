"""The shard's reader: who is served first, and what was made of a run beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.pipeline.batches import align_runs
from windrow.pipeline.reader import Pace


def test_a_consumer_that_works_is_served_first_and_one_that_only_waits_is_not() -> None:
    pace = Pace()
    for _ in range(10):
        pace.note(worked=0.1, waited=1.0)
    assert not pace.works
    for _ in range(10):
        pace.note(worked=1.0, waited=0.1)
    assert pace.works


def test_a_hiccup_changes_nothing() -> None:
    pace = Pace()
    for _ in range(10):
        pace.note(worked=1.0, waited=0.1)
    pace.note(worked=0.1, waited=60.0)
    assert pace.works


def test_a_run_of_whole_batches_is_handed_on_itself() -> None:
    runs = [pa.record_batch({"x": np.arange(rows)}) for rows in (6, 4, 3, 5, 6)]
    spans = list(align_runs(iter(runs), 2))
    assert [span is run for span, run in zip(spans, runs, strict=False)][:2] == [True, True]
    assert sum(span is run for span in spans for run in runs) == 3


@pytest.mark.parametrize("batch_size", [7, 64, 1_000])
def test_batches_made_where_runs_are_placed_are_those_made_when_asked_for(
    tmp_path: Path, batch_size: int
) -> None:
    pq.write_table(pa.table({"x": np.arange(500)}), tmp_path / "x.parquet", row_group_size=33)
    ds = windrow.read_parquet(tmp_path, target_block_bytes=1).window(blocks_per_window=3)
    pipe = ds.random_shuffle_each_window(seed=3).options(executor="threads")
    early, late = (
        [batch["x"].tolist() for batch in pipe.iter_batches(batch_size, batch_format=batch_format)]
        for batch_format in ("numpy", "pandas")
    )
    tensors = [batch["x"].tolist() for batch in pipe.iter_torch_batches(batch_size)]
    assert early == late == tensors
    assert sorted(x for batch in early for x in batch) == list(range(500))


def test_what_cannot_become_a_tensor_is_refused_wherever_batches_are_made(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(50)}), tmp_path / "x.parquet")
    pipe = (
        windrow.read_parquet(tmp_path)
        .repeat(1)
        .random_shuffle_each_window(seed=3)
        .options(executor="threads")
    )
    with pytest.raises(windrow.PlanError, match="no tensor holds 'x'"):
        list(pipe.map_batches(lambda batch: {"x": batch["x"].astype(str)}).iter_torch_batches(10))
