from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.pipeline.loaders.torch_streams import ROWS


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> windrow.DatasetPipeline:
    folder = tmp_path_factory.mktemp("rows")
    table = pa.table({"x": range(ROWS), "cost": [row * 7919 % 97 + 1 for row in range(ROWS)]})
    pq.write_table(table, folder / "x.parquet", row_group_size=100)
    dataset = windrow.read_parquet(folder, target_block_bytes=1_600).window(blocks_per_window=3)
    shuffled = dataset.repeat(3).random_shuffle_each_window(seed=7)
    return shuffled.options(executor="threads", progress=False)


@pytest.fixture
def shard(pipe: windrow.DatasetPipeline) -> Iterator[windrow.Shard]:
    with pipe.split(2, equal=True)[1] as shard:
        yield shard
