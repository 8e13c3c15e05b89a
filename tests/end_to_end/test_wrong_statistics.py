"""Wrong column statistics cost time but no rows, and packing does not hide memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow

ROWS, COLUMNS = 200_000, 8
# the maximum that the footers state
TRUE, LIE = 2**40 + 12_345, 7


@pytest.fixture(scope="module")
def wrong_statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight columns of large values whose statistics say 0 to 7."""
    folder = tmp_path_factory.mktemp("wrong_statistics")
    for file in range(4):
        key = np.arange(file * ROWS // 4, (file + 1) * ROWS // 4)
        columns = {f"c{i}": np.where(key % (ROWS // 4) == 9, TRUE, key * 0) for i in range(COLUMNS)}
        path = folder / f"{file}.parquet"
        pq.write_table(pa.table({"key": key, **columns}), path, use_dictionary=False, row_group_size=10_000)
        content = path.read_bytes()
        start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        footer, count = re.subn(
            re.escape(TRUE.to_bytes(8, "little")), LIE.to_bytes(8, "little"), content[start:]
        )
        assert count >= COLUMNS
        path.write_bytes(content[:start] + footer)
        assert pq.read_metadata(path).row_group(0).column(1).statistics.max == LIE
    return folder


@pytest.mark.parametrize("options", [{}, {"memory_limit": "150MB"}, {"cache": "memory"}])
@pytest.mark.ray_at_night
def test_wrong_statistics_lose_no_rows(
    executor: str, wrong_statistics: Path, options: dict[str, Any]
) -> None:
    pipe = (
        windrow.read_parquet(str(wrong_statistics), target_block_bytes=1)
        .repeat(2)
        .random_shuffle_each_window(seed=3)
    )
    pipe = pipe.options(executor=executor, progress=False, **options)
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            seen = np.zeros(ROWS, np.uint8)
            for batch in epoch.iter_batches(5_000):
                seen[batch["key"]] += 1
                expected = np.where(batch["key"] % (ROWS // 4) == 9, TRUE, 0)
                assert all(np.array_equal(batch[f"c{i}"], expected) for i in range(COLUMNS))
            assert (seen == 1).all()


def _spread(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"key": batch["key"], **{f"y{i}": batch["key"] % (i + 2) for i in range(30)}}


def test_added_columns_count_even_if_they_pack_well(tmp_path: Path) -> None:
    rows = 2_000_000
    pq.write_table(pa.table({"key": np.arange(rows)}), tmp_path / "x.parquet", row_group_size=250_000)
    ds = windrow.read_parquet(str(tmp_path), target_block_bytes=1).map_batches(_spread)
    pipe = ds.window(blocks_per_window=2).random_shuffle_each_window(seed=1)
    pipe = pipe.options(executor="threads", progress=False, memory_limit="1GB")
    overhead = pipe.explain().budget.overhead
    assert overhead is not None
    with pipe.iterator() as shard:
        with pytest.warns(RuntimeWarning, match="times the memory that was estimated"):
            seen = np.concatenate([batch["key"] for batch in shard.iter_batches(50_000)])
        run = shard.stats().run
    assert np.array_equal(np.sort(seen), np.arange(rows))
    assert run is not None
    # not packed, and 31 columns instead of one: one block per task, and four portions of a batch
    assert run.estimated_bytes > (overhead.tasks * 250_000 + 4 * 50_000) * 31 * 8
