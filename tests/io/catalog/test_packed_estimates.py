"""Integer statistics of footers, and packed size estimates that are never below the actual sizes."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.files import open_parquet, write
from windrow.core.buffer_pool import BufferPool
from windrow.core.source import column_bounds
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.manifest import load_manifest, save_manifest
from windrow.io.catalog.row_ids import RowIdSource
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows

DAY = dt.date(2024, 2, 29)
TABLE = pa.table(
    {
        "id": pa.array(range(100, 700)),
        "day": pa.array([DAY + dt.timedelta(days=row % 3) for row in range(600)]),
        "at": pa.array(
            [dt.datetime(2024, 1, 1) + dt.timedelta(hours=row) for row in range(600)], pa.timestamp("us")
        ),
        "some": pa.array([None if row == 5 else row for row in range(600)]),
        "price": pa.array(np.linspace(0, 1, 600)),
        "text": pa.array(["a"] * 600),
        "far": pa.array([2**63 if row == 9 else 0 for row in range(600)], pa.uint64()),
    }
)
HOUR = 3_600_000_000


def saved_bytes(source: FileSource | RowIdSource) -> list[int]:
    packed = source.blocks.packed_bytes
    assert packed is not None
    return (source.blocks.memory_bytes - packed).tolist()


def test_statistics_bound_integers_without_nulls(tmp_path: Path) -> None:
    source = open_parquet(write(tmp_path / "t.parquet", TABLE, row_group_size=200), target_block_bytes=2**26)
    first = int(dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc).timestamp()) * 10**6
    days = (DAY - dt.date(1970, 1, 1)).days
    assert source.manifest.ranges["id"] == (100, 699)
    assert source.manifest.ranges["day"] == (days, days + 2)
    assert source.manifest.ranges["at"] == (first, first + 599 * HOUR)
    assert not {"price", "text"} & set(source.manifest.ranges)
    # id shrinks from 8 bytes to 2, day from 4 to 1; the statistics of the other columns allow no packing
    assert saved_bytes(source) == [600 * (6 + 3)]


def test_columns_without_statistics_or_selection_save_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", TABLE)
    assert saved_bytes(open_parquet(path, columns=["id", "price"])) == [600 * 6]
    assert saved_bytes(open_parquet(path, columns=["price", "some", "text"])) == [0]


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (pa.table({"x": pa.array([1, 2], pa.int32())}), {}),
        (pa.table({"x": [1, 2]}), {"write_statistics": False}),
        (pa.table({"x": [1, None]}), {}),
    ],
)
def test_one_file_without_statistics_makes_the_estimate_unknown(
    tmp_path: Path, other: pa.Table, options: dict[str, Any]
) -> None:
    write(tmp_path / "d" / "a.parquet", pa.table({"x": [3, 4]}))
    assert saved_bytes(open_parquet(tmp_path / "d")) == [2 * 7]
    write(tmp_path / "d" / "b.parquet", other, **options)
    source = open_parquet(tmp_path / "d", columns=["x"])
    assert saved_bytes(source) == [0, 0]


def test_a_file_without_rows_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "d" / "a.parquet", pa.table({"x": [3, 4]}))
    write(tmp_path / "d" / "b.parquet", pa.table({"x": pa.array([], pa.int64())}))
    assert sum(saved_bytes(open_parquet(tmp_path / "d"))) == 2 * 7


def test_estimate_counts_row_ids_unpacked_though_they_have_bounds(tmp_path: Path) -> None:
    source = open_parquet(write(tmp_path / "t.parquet", TABLE.select(["id"])), columns=["id"]).with_row_id(
        "row"
    )
    assert saved_bytes(source) == [600 * 6]
    (part,) = source.reader.parts(source.addresses([0])[0])
    assert column_bounds(part, [0, 1]).tolist() == [[100, 699], [0, 599]]


def test_manifest_stores_estimates_and_older_manifests_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_parquet(write(tmp_path / "t.parquet", TABLE))
    save_manifest(source.manifest, tmp_path / "m.npz")
    assert load_manifest(tmp_path / "m.npz").ranges == source.manifest.ranges
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda head: dumps({n: v for n, v in head.items() if n != "ranges"}))
    save_manifest(source.manifest, tmp_path / "m.npz")
    assert load_manifest(tmp_path / "m.npz").ranges == {}


def test_filtered_blocks_are_read_as_tables_with_unknown_row_counts(tmp_path: Path) -> None:
    # statistics cover all rows of the file, not only those that the filter selects
    source = open_parquet(write(tmp_path / "t.parquet", TABLE), filter=pc.field("id") > 300)
    (part,) = source.reader.parts(source.addresses([0])[0])
    assert isinstance(part, pa.Table)
    assert not source.blocks.rows_known


KINDS = [
    pa.int16(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
    pa.date32(),
    pa.timestamp("ms"),
    pa.time64("us"),
]


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    rows=st.integers(1, 120),
    group_rows_each=st.integers(10, 60),
    seed=st.integers(0, 2**31),
    codec=st.sampled_from(["snappy", "none", "zstd"]),
    dictionary=st.booleans(),
)
def test_packed_size_never_exceeds_its_estimate_and_rows_are_equal(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: list[pa.DataType],
    rows: int,
    group_rows_each: int,
    seed: int,
    codec: str,
    dictionary: bool,
) -> None:
    rng = np.random.default_rng(seed)
    columns = {}
    for number, kind in enumerate(kinds):
        bits = kind.bit_width
        most = min(
            2 ** int(rng.integers(0, bits)), 86_399_999_999 if pa.types.is_time(kind) else 2 ** (bits - 1)
        )
        low = 0 if pa.types.is_time(kind) else int(rng.integers(-2, 3))
        values = (rng.integers(0, most, rows) + low).astype(f"int{bits}")
        # a column name can contain a dot
        columns[f"c.{number}"] = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])
    table = pa.table(columns)
    path = tmp_path_factory.mktemp("ranges") / "t.parquet"
    with pq.ParquetWriter(path, table.schema, compression=codec, use_dictionary=dictionary) as writer:
        for start in range(0, rows, group_rows_each):
            # an empty row group has no statistics, and must not affect those of others
            if rng.random() < 0.3:
                writer.write_table(table.slice(0, 0))
            writer.write_table(table.slice(start, group_rows_each))
    source = open_parquet(path, target_block_bytes=int(rng.integers(200, 4_000)))
    packed, pool, start = source.blocks.packed_bytes, BufferPool(0), 0
    assert packed is not None
    for block, address in enumerate(source.addresses(range(len(packed)))):
        map_outputs, begun = [], start
        for part in source.reader.parts(address):
            places = np.arange(start - begun, start - begun + part.num_rows, dtype=np.uint32)
            map_outputs += group_rows(
                part, None, np.zeros(len(places), np.uint16), places, np.array([0, 1]), pool
            )
            start += part.num_rows
        padding = 8 * len(kinds) * len(map_outputs)
        assert sum(map_output.values.nbytes for map_output in map_outputs) <= packed[block] + padding
        placed = place_rows(MapOutputs(map_outputs), 0, start - begun, pool)
        assert pa.Table.from_batches([placed]).equals(table.slice(begun, start - begun).cast(source.schema))
    assert start == rows
