"""Memory stays within the limit: nothing is spilled, and windows that cannot fit are rejected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.reading import at_once
from tests.end_to_end.small_store import COLUMNS, NOTHING_SPILLED, ROWS, run_script
from windrow import Shard
from windrow.core.byte_sizes import format_bytes
from windrow.pipeline.statistics.stats import RunStats

pytestmark = pytest.mark.timeout(170)

DATA_BYTES = ROWS * COLUMNS * 8

_THROUGH_A_SMALL_STORE = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import ray, windrow

path, rows = sys.argv[1], int(sys.argv[2])
context = ray.init(address="local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False,
                   log_to_driver=False, logging_level="ERROR")
ds = windrow.read_parquet(path, target_block_bytes=1)
pipe = ds.window(bytes_per_window="30MB").repeat(1).random_shuffle_each_window(seed=1)
pipe = pipe.options(executor="ray")
assert ds.size_bytes() >= 10 * ray.cluster_resources()["object_store_memory"] * 0.97
seen = np.zeros(rows, np.uint8)

def read(shard):
    for batch in shard.iter_torch_batches(8192):
        np.add.at(seen, batch["key"].numpy(), 1)
        assert len(batch) == 16
    return shard.stats()

with ThreadPoolExecutor(2) as threads:
    stats = list(threads.map(read, pipe.split(2)))
assert (seen == 1).all(), np.bincount(seen)
run = stats[0].run
assert run.peak_held_bytes <= run.memory_bytes <= 80 * 2**20, run
"""


@pytest.mark.ray
@pytest.mark.nightly
def test_ten_times_the_object_store_without_spilling(tmp_path: Path, wide: Path) -> None:
    script = _THROUGH_A_SMALL_STORE + NOTHING_SPILLED
    assert run_script(script, tmp_path, str(wide), str(ROWS), timeout=160) == ("done\n", "")


def _read_keys(shard: Shard) -> np.ndarray:
    return np.concatenate([batch["key"] for batch in shard.iter_batches(8_192)])


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_windows_of_most_of_the_limit_stream_on_threads(wide: Path, share: float) -> None:
    limit = 500_000_000
    ds = windrow.read_parquet(str(wide), target_block_bytes=1)
    pipe = ds.window(bytes_per_window=int(limit * share)).random_shuffle_each_window(seed=1)
    limited = pipe.options(executor="threads", memory_limit=limit)
    assert limited.explain(2).budget.total_bytes <= limit
    shards = limited.split(2)
    keys = np.concatenate(at_once(shards, _read_keys))
    assert np.array_equal(np.sort(keys), np.arange(ROWS))
    run = shards[0].stats().run
    assert 0 < run.peak_held_bytes <= run.memory_bytes <= limit
    assert run.dropped_windows == 0


def _widen(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    # one column becomes 16, of floats, because integers would be packed into fewer bytes
    return {"key": batch["key"] + 0.0, **{f"y{i}": batch["key"] + i / 2 for i in range(15)}}


def _read_all(shard: Shard) -> tuple[np.ndarray, RunStats]:
    keys = _read_keys(shard)
    return keys, shard.stats().run


@pytest.mark.ray_at_night
def test_added_columns_are_estimated_and_stay_within_the_limit(executor: str, wide: Path) -> None:
    limit = 600_000_000
    ds = windrow.read_parquet(str(wide), target_block_bytes=1, columns=["key"]).map_batches(_widen)
    pipe = ds.window(bytes_per_window="8MB").random_shuffle_each_window(seed=1)
    pipe = pipe.options(executor=executor, memory_limit=limit)
    announced = pipe.explain().budget.total_bytes
    shard = pipe.iterator()
    with pytest.warns(RuntimeWarning, match=r"blocks take 9\.\d times the memory") as caught:
        keys, run = _read_all(shard)
    assert np.array_equal(np.sort(keys), np.arange(ROWS))
    assert len(caught) == 1
    # two buffered windows of 132 MB
    assert run.estimated_bytes > 1.2 * announced
    assert format_bytes(run.estimated_bytes) in str(caught[0].message)
    if executor == "threads":
        assert run.estimated_bytes <= limit
        # runs and decoded blocks keep their size, however much rows grow
        assert limit - 100_000_000 < run.memory_bytes < limit - 35_000_000
    assert 128_000_000 < run.peak_held_bytes <= run.memory_bytes


ASKS: dict[str, Callable[[windrow.DatasetPipeline], Any]] = {
    "explain": lambda pipe: pipe.explain(2),
    "split": lambda pipe: pipe.split(2),
    "iter_batches": lambda pipe: pipe.iter_batches(1_000),
}


@pytest.mark.parametrize("how", ASKS)
@pytest.mark.parametrize("pipeline", ["window", "repeat"])
def test_window_that_cannot_fit_is_rejected(executor: str, wide: Path, how: str, pipeline: str) -> None:
    ds = windrow.read_parquet(str(wide), target_block_bytes=1).options(
        executor=executor, memory_limit="250MB"
    )
    pipe = ds.window(bytes_per_window="500MB") if pipeline == "window" else ds.repeat(2)
    with pytest.raises(windrow.PlanError, match="memory limit") as caught:
        ASKS[how](pipe.random_shuffle_each_window(seed=1))
    found = re.search(r"window\(bytes_per_window=(\d+)\)", str(caught.value))
    assert found is not None, caught.value
    # the suggested fix works
    smaller = ds.window(bytes_per_window=int(found[1])).random_shuffle_each_window(seed=1)
    smaller.explain(1 if how == "iter_batches" else 2)
    assert int(found[1]) > 80_000_000


@pytest.mark.ray_at_night
def test_larger_windows_of_integers_fit(executor: str, tmp_path: Path) -> None:
    # 160 MB decoded, but about 40 MB sent: frame-of-reference encoding removes what is constant within a block
    rows = 1_000_000
    table = pa.table({"key": np.arange(rows), **{f"c{i}": np.arange(rows) // 10_000 for i in range(19)}})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=50_000)
    ds = windrow.read_parquet(str(tmp_path), target_block_bytes=1).options(executor=executor)
    whole = ds.repeat(1).random_shuffle_each_window(seed=1)
    budget = whole.explain(batch_size=10_000).budget
    assert not budget.exact, "column statistics may be wrong"
    assert budget.window_bytes < 60_000_000
    beside = budget.total_bytes - budget.windows_bytes
    tight = whole.options(memory_limit=80_000_000 + (beside if executor == "threads" else 0))
    seen = np.zeros(rows, np.uint8)
    with tight.iterator() as shard:
        for batch in shard.iter_batches(10_000):
            seen[batch["key"]] += 1
            assert np.array_equal(batch["c18"], batch["key"] // 10_000)
        run = shard.stats().run
    assert (seen == 1).all()
    assert run is not None
    assert 15_000_000 < run.peak_held_bytes <= budget.window_bytes


@pytest.mark.ray_at_night
def test_memory_limit_does_not_change_the_order(executor: str, wide: Path) -> None:
    ds = windrow.read_parquet(str(wide), target_block_bytes=1, columns=["key"])
    pipe = ds.window(bytes_per_window="16MB").random_shuffle_each_window(seed=1)

    def read(**options: Any) -> list[np.ndarray]:
        return at_once(pipe.options(executor=executor, **options).split(2), _read_keys)

    usual = read()
    # every limit must leave at least the memory of tasks and runs in addition to the windows
    others: list[dict[str, Any]] = [{"memory_limit": "148MB"}, {"prefetch_windows": 0}]
    for options in others if executor == "ray" else [*others, {"prefetch_windows": 3}]:
        assert all(np.array_equal(a, b) for a, b in zip(usual, read(**options), strict=True))
