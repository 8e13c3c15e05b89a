"""Real and generated data through the complete pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.reading import at_once, read_epochs
from windrow import Shard

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["flights", "generated"])
def data_path(request: pytest.FixtureRequest) -> Path:
    """The path of each dataset."""
    name = "flights_path" if request.param == "flights" else "trips_path"
    path: Path = request.getfixturevalue(name)
    return path


def _in_one_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


def _shards(path: Path, executor: str, *columns: str) -> list[Shard]:
    ds = windrow.read_parquet(str(path), columns=list(columns) or None, target_block_bytes="1MB")
    pipe = ds.window(bytes_per_window="40MiB").repeat(2).random_shuffle_each_window(seed=3)
    return pipe.options(executor=executor).split(2)


@pytest.mark.ray_at_night
def test_every_row_once_per_epoch(executor: str, data_path: Path) -> None:
    stored = pq.read_table(data_path)
    expected = _in_one_order(stored)
    of_shards = at_once(_shards(data_path, executor), lambda shard: read_epochs(shard, 4096))
    assert [len(epochs) for epochs in of_shards] == [2, 2]
    orders = []
    for epochs in zip(*of_shards, strict=True):
        assert all(batch.num_rows == 4096 for shard in epochs for batch in shard[:-1])
        rows = pa.concat_tables([batch for shard in epochs for batch in shard])
        assert rows.schema == stored.schema
        assert _in_one_order(rows).equals(expected)
        orders.append(rows)
    assert not orders[0].equals(orders[1])
    assert not orders[0].slice(0, 1000).equals(stored.slice(0, 1000))


@pytest.mark.ray_at_night
def test_numeric_columns_as_tensors(executor: str, data_path: Path) -> None:
    import torch

    names = ["delay", "distance"]

    def read(shard: Shard) -> np.ndarray:
        parts = []
        for batch in shard.iter_torch_batches(1024):
            assert list(batch) == names
            assert all(batch[name].dtype == torch.int64 for name in names)
            parts.append(np.stack([batch[name].numpy() for name in names]))
        return np.concatenate(parts, axis=1)

    found = np.concatenate(at_once(_shards(data_path, executor, *names), read), axis=1)
    stored = pq.read_table(data_path, columns=names)
    expected = np.stack([stored[name].to_numpy() for name in names])
    assert np.array_equal(found[:, np.lexsort(found)], expected[:, np.lexsort(expected)])


def test_order_is_the_same_on_both_executors(trips_path: Path, ray_local: object) -> None:
    threads, ray = (
        at_once(_shards(trips_path, executor), lambda shard: read_epochs(shard, 500))
        for executor in ("threads", "ray")
    )
    assert threads == ray
