"""Every column type passes the pipeline unchanged; types that do not fit into tensors are rejected."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.reading import at_once, read_pass
from tests.library_versions import parquet_stores_nulls
from tests.pipeline.columns import ALL_TYPES, make_array

pytestmark = pytest.mark.timeout(60)

ROWS = 400
ROW_GROUP = 50


@pytest.fixture(scope="module")
def all_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files with a key and a column of each type, with nulls and without."""
    directory = tmp_path_factory.mktemp("types")
    for part in range(2):
        columns: dict[str, Any] = {"key": np.arange(part * ROWS, (part + 1) * ROWS)}
        for number, kind in enumerate(ALL_TYPES):
            for nulls in (False, True):
                made = make_array(
                    kind, ROWS // 8, nulls=nulls and parquet_stores_nulls(kind), start=part * 50
                )
                columns[f"{number}-{kind}-{nulls}"] = pa.concat_arrays([made] * 8)
        pq.write_table(pa.table(columns), directory / f"{part}.parquet", row_group_size=ROW_GROUP)
    return directory


@pytest.mark.parametrize("blocks_per_window", [1, 5, None])
@pytest.mark.ray_at_night
def test_all_types_pass_unchanged(executor: str, all_types: Path, blocks_per_window: int | None) -> None:
    ds = windrow.read_parquet(str(all_types), target_block_bytes=1)
    windowed = ds.window(blocks_per_window=blocks_per_window)
    shards = windowed.random_shuffle_each_window(seed=1).options(executor=executor).split(2)
    rows = pa.concat_tables([batch for shard in at_once(shards, read_pass) for batch in shard])
    expected = pq.read_table(all_types).combine_chunks()
    assert rows.schema == expected.schema
    found = rows.take(np.argsort(rows["key"].to_numpy())).combine_chunks()
    found.validate(full=True)
    for name in expected.column_names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name


@pytest.mark.ray_at_night
def test_all_types_pass_a_transform_unchanged(executor: str, all_types: Path) -> None:
    def add(batch: pa.Table) -> pa.Table:
        return batch.append_column("twice", pa.array(batch["key"].to_numpy() * 2))

    pipe = windrow.read_parquet(str(all_types)).map_batches(add, batch_format="pyarrow")
    shard = pipe.repeat(1).random_shuffle_each_window(seed=1).options(executor=executor).iterator()
    rows = pa.concat_tables(read_pass(shard))
    expected = pq.read_table(all_types)
    found = rows.take(np.argsort(rows["key"].to_numpy()))
    assert found["twice"].to_pylist() == [2 * key for key in expected["key"].to_pylist()]
    for name in expected.column_names:
        assert found.schema.field(name).type == expected.schema.field(name).type
        assert found[name].to_pylist() == expected[name].to_pylist(), name


@pytest.mark.ray_at_night
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["a", "b", "c"]), r"'bad' \(string\).*columns=.*collate_fn"),
        (pa.array([1, None, 3]), r"nulls.*'bad' \(1 null\).*filter.*collate_fn"),
        (pa.array([["a"], [], ["b", "c"]]), r"'bad' \(list<.*columns=.*collate_fn"),
        (pa.array([b"a", b"b", b"c"]), r"'bad' \(binary\)"),
        (pa.array([1, 2, 3], pa.timestamp("us")), r"'bad' \(timestamp\[us\]\).*astype"),
    ],
)
def test_types_that_do_not_fit_into_tensors(
    executor: str, tmp_path: Path, column: pa.Array, message: str
) -> None:
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"good": [1, 2, 3], "bad": column}), path)
    pipe = windrow.read_parquet(str(path)).repeat(1).random_shuffle_each_window(seed=1)
    shard = pipe.options(executor=executor).iterator()
    with pytest.raises(windrow.PlanError, match=message):
        shard.iter_torch_batches(2)
    # the error loses no rows: the same epoch can be read with the suggested fix
    batches = shard.iter_torch_batches(2, collate_fn=lambda batch: batch["good"].tolist())
    assert sorted(value for batch in batches for value in batch) == [1, 2, 3]


@pytest.mark.ray_at_night
def test_tensors_are_writable_and_outlive_the_run(executor: str, tmp_path: Path) -> None:
    rows = 20_000
    images = pa.FixedShapeTensorArray.from_numpy_ndarray(
        np.arange(rows * 6, dtype=np.int16).reshape(rows, 2, 3)
    )
    table = pa.table(
        {
            "x": np.arange(rows),
            "flag": pa.array([i % 3 == 0 for i in range(rows)]),
            "pair": pa.FixedSizeListArray.from_arrays(np.arange(2 * rows, dtype=np.float32), 2),
            "image": images,
        }
    )
    path = tmp_path / "tensors.parquet"
    pq.write_table(table, path, row_group_size=1_000)
    pipe = windrow.read_parquet(str(path), target_block_bytes=1).window(blocks_per_window=7).repeat(1)
    shard = pipe.random_shuffle_each_window(seed=5).options(executor=executor).iterator()
    with shard:
        batches = list(shard.iter_torch_batches(1_500))
    del shard, pipe
    gc.collect()
    seen = []
    for batch in batches:
        keys = batch["x"].tolist()
        seen += keys
        assert batch["flag"].tolist() == [key % 3 == 0 for key in keys]
        assert batch["pair"].tolist() == [[2 * key, 2 * key + 1] for key in keys]
        assert batch["image"].shape == (len(keys), 2, 3)
        first = np.array([image.flatten()[0] for image in batch["image"].numpy()])
        assert np.array_equal(first, (np.array(keys) * 6).astype(np.int16))
    assert sorted(seen) == list(range(rows))
    for batch in batches:
        for tensor in batch.values():
            tensor.zero_()
    assert all(not tensor.any() for batch in batches for tensor in batch.values())
