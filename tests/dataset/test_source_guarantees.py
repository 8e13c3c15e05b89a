"""The guarantees on every ``from_*`` source: the order is that of a Parquet file with the same row groups."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.dataset.same_rows_sources import SAME_ROWS_SOURCES, make_rows
from windrow.core.source import TracingSource


def _as_parquet(rows: pa.Table, dataset: windrow.Dataset, path: Path) -> windrow.Dataset:
    """Write the rows to a Parquet file whose row groups are the dataset's blocks."""
    source = dataset._plan.source
    assert isinstance(source, TracingSource)
    counts = source.count_blocks()
    with pq.ParquetWriter(path / "rows.parquet", rows.schema) as writer:
        for start, count in zip(np.cumsum(counts) - counts, counts, strict=True):
            writer.write_table(rows.slice(start, count))
    return windrow.read_parquet(path / "rows.parquet", columns=dataset.columns(), target_block_bytes=1)


def _read(pipe: windrow.DatasetPipeline) -> list[dict[str, list[Any]]]:
    shards = pipe.options(executor="threads", progress=False).split(2, equal="pad")
    found: list[dict[str, list[Any]]] = []
    for shard in shards:
        with shard:
            batches = shard.iter_batches(batch_size=7)
            found += [{name: array.tolist() for name, array in batch.items()} for batch in batches]
    return found


@pytest.mark.parametrize("name", SAME_ROWS_SOURCES)
@settings(max_examples=3)
@given(
    count=st.integers(1, 90),
    block_bytes=st.integers(60, 700),
    blocks=st.none() | st.integers(1, 4),
    seed=st.none() | st.integers(0, 2**40),
)
def test_order_is_that_of_parquet(
    name: str, count: int, block_bytes: int, blocks: int | None, seed: int | None
) -> None:
    rows = make_rows(count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        dataset = SAME_ROWS_SOURCES[name](rows, block_bytes, path)
        # without rows=, dask partitions' sizes are estimated, and windows in bytes are cut by the estimates
        counted = blocks is not None or name == "dask"
        cut = {"blocks_per_window": blocks or 2} if counted else {"bytes_per_window": 500}
        if name == "pandas":
            rows = rows.set_column(3, "vector", pa.array(np.zeros(count, np.int64)))
        pipes = [ds.window(**cut).repeat(1) for ds in (dataset, _as_parquet(rows, dataset, path))]
        if seed is not None:
            pipes = [pipe.random_shuffle_each_window(seed=seed) for pipe in pipes]
        assert _read(pipes[0]) == _read(pipes[1])


@pytest.mark.parametrize("name", SAME_ROWS_SOURCES)
def test_blocks_are_cut_and_rows_are_traced(name: str, tmp_path: Path) -> None:
    rows = make_rows(100)
    dataset = SAME_ROWS_SOURCES[name](rows, 400, tmp_path)
    assert dataset.num_blocks() > 3
    assert dataset.count() == 100
    assert [row["x"] for row in dataset.options(row_id_column="id").iter_rows()] == list(range(100))
    pipe = dataset.repeat(1).random_shuffle_each_window(seed=5)
    numbered = pipe.options(row_id_column="id", executor="threads", progress=False)
    first = next(iter(numbered.iter_rows()))
    assert first["id"] == first["x"]
    (origin,) = numbered.epoch_lineage(0, 0, 1)
    before = int(np.cumsum([0, *dataset._plan.source.count_blocks()])[origin.row_group])  # type: ignore[attr-defined]
    assert before + origin.row == first["x"]


@pytest.mark.parametrize("name", SAME_ROWS_SOURCES)
def test_pickle_reads_the_same_rows_and_a_state_fits_only_them(name: str, tmp_path: Path) -> None:
    rows = make_rows(60)
    dataset = SAME_ROWS_SOURCES[name](rows, 300, tmp_path)

    def pipe(of: windrow.Dataset) -> windrow.DatasetPipeline:
        plan = of.window(blocks_per_window=2).repeat(1).random_shuffle_each_window(seed=1)
        return plan.options(executor="threads", progress=False)

    shard = pipe(dataset).iterator()
    batches = iter(shard.iter_batches(batch_size=10))
    taken = next(batches)["x"].tolist() + next(batches)["x"].tolist()
    state = shard.state_dict()
    shard.close()
    again = pickle.loads(pickle.dumps(dataset))
    rest = [x for batch in pipe(again).iterator(state_dict=state).iter_batches() for x in batch["x"].tolist()]
    assert sorted(taken + rest) == list(range(60))
    if name == "torch items":
        return  # a map-style dataset is identified by its class and length alone
    others = SAME_ROWS_SOURCES[name](
        rows.set_column(0, "x", pa.array(np.arange(60) + 1)), 300, tmp_path / "others"
    )
    with pytest.raises(windrow.StateError, match="content"):
        pipe(others).iterator(state_dict=state)
