"""Blocks that are pieces of a row group: the rows that Arrow reads, whatever the pages, from whatever store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, reject
from hypothesis import strategies as st

import windrow
from tests.io.files import cut_source, open_parquet
from tests.laws.examples import examples
from tests.library_versions import parquet_stores_nulls
from windrow.dataset import logical_plan
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.blocks import CutSizes
from windrow.io.catalog.file_source import FileSource
from windrow.io.parquet import row_ranges, verified_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.parquet.row_ranges import RowRange

PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
KINDS: dict[str, Any] = {
    "number": pa.int64(),
    "sparse": pa.int32(),
    "gaps": pa.string(),
    "small": pa.int8(),
    "unsigned": pa.uint16(),
    "half": pa.float16(),
    "single": pa.float32(),
    "flag": pa.bool_(),
    "text": pa.string(),
    "large": pa.large_binary(),
    "fixed": pa.binary(5),
    "amount": pa.decimal128(9, 3),
    "wide": pa.decimal256(50, 3),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "old": pa.timestamp("ns"),
    "word": pa.dictionary(pa.int32(), pa.string()),
    "list": pa.list_(pa.int64()),
    "words": pa.list_(pa.string()),
    "lists": pa.list_(pa.list_(pa.int16())),
    "vector": pa.list_(pa.float32(), 3),
    "pair": PAIR,
    "pairs": pa.large_list(PAIR),
    "deep": pa.struct([("x", PAIR), ("y", pa.list_(pa.int8()))]),
    "map": pa.map_(pa.string(), pa.int32()),
}
START = datetime(2020, 1, 1, tzinfo=timezone.utc)


def make_value(name: str, n: int) -> Any:
    """The value of a row; every column has nulls, and nested ones have empty lists and long ones."""
    if n % 7 == 3 or (name in ("sparse", "gaps") and n % 60 < 45):
        return None
    items = [n + i for i in range((n * 7) % 5 if n % 31 else 40)]
    pair = {"a": None if n % 3 == 0 else n, "b": f"b{n % 4}"}
    made = {
        "small": n % 100,
        "unsigned": n,
        "half": np.float16(n % 50),
        "single": n / 2,
        "flag": n % 2 == 0,
        "gaps": f"text {n}",
        "text": f"text {n % 6}" * (n % 9),
        "large": b"\0" * (n % 13),
        "fixed": f"{n % 9:05}".encode(),
        "amount": Decimal(n) / 8,
        "wide": Decimal(n) / 8,
        "day": n,
        "at": START.replace(microsecond=n % 1000),
        "old": datetime(1900 + n % 200, 1, 1 + n % 28),
        "word": f"w{n % 5}",
        "list": items,
        "words": [None if i % 4 == 1 else f"i{i % 8}" for i in items],
        "lists": [[i % 99] * (i % 3) for i in items] if n % 4 else [],
        "vector": [n, None, n + 1],
        "pair": pair,
        "pairs": [pair] * (n % 3) if n % 2 else [None],
        "deep": {"x": pair if n % 5 else None, "y": [i % 100 for i in items[:3]]},
        "map": [(f"k{i}", i) for i in items[:4]],
    }
    return made.get(name, n)


def make_column(name: str, rows: int) -> pa.Array:
    values, kind = [make_value(name, n) for n in range(rows)], KINDS[name]
    return pa.array(values, pa.string()).dictionary_encode() if name == "word" else pa.array(values, kind)


def read_parts(source: FileSource) -> pa.Table:
    """All rows, from the parts of the blocks."""
    columns = list(range(len(source.schema)))
    tables = [
        part.select(columns)
        for address in source.addresses(range(len(source.blocks.rows)))
        for part in source.reader.parts(address)
    ]
    return pa.concat_tables([source.schema.empty_table(), *tables])


def read_blocks(source: FileSource) -> Iterator[pa.Table]:
    for address in source.addresses(range(len(source.blocks.rows))):
        yield source.reader.read(address)


def shuffled(source: FileSource) -> pa.Table:
    """All rows as they are delivered, in stored order again: decoded in C wherever that is possible."""
    ds = Dataset(LogicalPlan(source)).repeat(1).random_shuffle_each_window(seed=3).options(executor="threads")
    (shard,) = ds.split(1)
    batches = [
        batch for epoch in shard.iter_epochs() for batch in epoch.iter_batches(7, batch_format="pyarrow")
    ]
    table = pa.concat_tables(
        [pa.Table.from_batches([each]) if isinstance(each, pa.RecordBatch) else each for each in batches]
    )
    return table.sort_by("n")


WRITERS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([1, 64, 512, 2**20]),
        "write_batch_size": st.sampled_from([1, 5, 64]),
        "write_page_index": st.booleans(),
        "use_dictionary": st.booleans(),
        "row_group_size": st.sampled_from([40, 1000]),
        "store_schema": st.booleans(),
    }
)


@examples(30)
@given(
    rows=st.integers(2, 150),
    piece=st.integers(1, 60),
    names=st.lists(
        st.sampled_from([name for name in sorted(KINDS) if parquet_stores_nulls(KINDS[name])]),
        min_size=1,
        max_size=4,
        unique=True,
    ),
    writer=WRITERS,
)
def test_rows_of_pieces_are_those_that_arrow_reads(
    rows: int, piece: int, names: list[str], writer: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.parquet")
        table = pa.table({"n": np.arange(rows)} | {name: make_column(name, rows) for name in names})
        pq.write_table(table, path, **writer)
        try:
            expected = pq.read_table(path)
        except pa.ArrowInvalid:
            # Arrow cannot read all lists of a fixed size that it writes into pages of one value
            reject()
        source = cut_source(open_parquet(path), piece)
        assert source.schema.names == expected.schema.names
        if min(rows, 40) > 2 * piece:
            assert len(source.blocks.rows) > pq.read_metadata(path).num_row_groups
        expected = expected.cast(source.schema)
        starts = np.append(0, np.cumsum(source.blocks.rows)).tolist()
        for start, stop, read in zip(starts, starts[1:], read_blocks(source), strict=False):
            assert read.equals(expected.slice(start, stop - start))
        assert read_parts(source).equals(expected)
        assert shuffled(source).equals(expected.combine_chunks())


@pytest.mark.parametrize("index", [True, False])
def test_only_the_pages_of_a_piece_are_read_from_a_store(tmp_path: Path, index: bool) -> None:
    rows = 600_000
    values = np.random.Generator(np.random.PCG64(1)).integers(0, 2**62, rows)
    table = pa.table({"n": np.arange(rows), "x": values, "s": [f"{v:x}" for v in values.tolist()]})
    store = MemoryFileSystem()
    with store.open("/ranges/x.parquet", "wb") as file:
        pq.write_table(table, file, row_group_size=rows, write_page_index=index, data_page_size=2**16)
    read: list[int] = []

    class Counting(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
            found = super().cat_file(path, start, end, **options)
            read.append(len(found))
            return found

    source = cut_source(open_parquet("/ranges/x.parquet", filesystem=Counting()), 60_000)
    address = source.addresses([5])[0]
    read.clear()
    first, stop = address.locator[0].first_row, address.locator[0].stop_row
    assert source.reader.read(address).equals(table.slice(first, stop - first))
    size = store.size("/ranges/x.parquet")
    if index:
        assert sum(read) < size / 4
    # what has been found is known for the next pieces
    read.clear()
    address = source.addresses([4])[0]
    first, stop = address.locator[0].first_row, address.locator[0].stop_row
    assert source.reader.read(address).equals(table.slice(first, stop - first))
    assert sum(read) < size / 4
    store.rm("/ranges", recursive=True)


@pytest.mark.parametrize("held", [0, 5_000, 2**26])
def test_pages_that_are_not_found_are_streamed_from_a_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held: int
) -> None:
    """Whole chunks where all of them fit into what may be held, and else through buffers."""
    monkeypatch.setattr(row_ranges, "_STREAMED_BYTES", held)
    monkeypatch.setattr(RowRange, "_find_rows", lambda self, leaf: None)
    opened: list[int] = []

    def note(*args: Any, buffer_size: int = 0, **options: Any) -> Any:
        opened.append(buffer_size)
        return open_stored(*args, buffer_size=buffer_size, **options)

    open_stored = verified_files.open_parquet
    monkeypatch.setattr(row_ranges, "open_parquet", note)
    table = pa.table({"n": np.arange(1000), "s": [f"s{n}" for n in range(1000)]})
    store = MemoryFileSystem()
    path = f"{tmp_path}/x.parquet"
    with store.open(path, "wb") as file:
        pq.write_table(table, file, data_page_size=512)
    source = cut_source(open_parquet(path, filesystem=store), 300)
    assert pa.concat_tables(read_blocks(source)).equals(table)
    assert opened
    assert set(opened) == {{0: 1, 5_000: 2_500, 2**26: 0}[held]}


def test_a_filter_sees_the_rows_of_each_piece(tmp_path: Path) -> None:
    table = pa.table({"n": np.arange(100), "s": [f"s{n}" for n in range(100)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=100)
    source = cut_source(
        open_parquet(tmp_path / "x.parquet", filter=pc.field("n") > 61),
        10,
    )
    assert len(source.blocks.rows) == 10
    assert pa.concat_tables(list(read_blocks(source))).equals(table.slice(62))
    assert read_parts(source).equals(table.slice(62))


def test_old_timestamps_of_other_centuries(tmp_path: Path) -> None:
    years = [1500, 1900, 2020, 9000] * 20
    times = pa.array(
        [None if n % 9 == 0 else datetime(year, 1, 1 + n % 28) for n, year in enumerate(years)],
        pa.timestamp("us"),
    )
    pq.write_table(
        pa.table({"n": np.arange(80), "t": times}),
        tmp_path / "x.parquet",
        use_deprecated_int96_timestamps=True,
    )
    schema = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us"))])
    source = cut_source(open_parquet(tmp_path / "x.parquet", schema=schema), 7)
    assert len(source.blocks.rows) > 9
    assert read_parts(source).column("t").combine_chunks().equals(times)


def test_fields_of_structs_and_columns_that_a_file_lacks(tmp_path: Path) -> None:
    table = pa.table({"n": np.arange(90), "pair": make_column("pair", 90), "deep": make_column("deep", 90)})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.append_column("more", pa.array(np.arange(90))), tmp_path / "b.parquet")
    source = cut_source(open_parquet(tmp_path, columns=["more", "pair.b", "deep.x.a"]), 20)
    assert len(source.blocks.rows) > 8
    read = read_parts(source)
    assert read.column("more").to_pylist() == [None] * 90 + list(range(90))
    pairs = [None if row is None else {"b": row["b"]} for row in table.column("pair").to_pylist()]
    assert read.column("pair").to_pylist() == pairs * 2
    deep = [
        None if row is None else {"x": None if row["x"] is None else {"a": row["x"]["a"]}}
        for row in table.column("deep").to_pylist()
    ]
    assert read.column("deep").to_pylist() == deep * 2


def test_origins_row_ids_and_lineage_of_pieces(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": np.arange(100)}), tmp_path / "x.parquet", row_group_size=50)
    source = cut_source(open_parquet(tmp_path / "x.parquet"), 20)
    addresses = source.addresses(range(len(source.blocks.rows)))
    assert [address.origin.rpartition("x.parquet")[2] for address in addresses][:2] == [
        ", row group 0, rows 0-16",
        ", row group 0, rows 17-33",
    ]
    assert source.row_lineage(np.array([60]))[0][1:] == (1, 10)
    assert source.row_numbers(1, np.array([2])).tolist() == [19]
    with_ids = source.with_row_id("id")
    read = [with_ids.reader.read(address) for address in with_ids.addresses(range(len(addresses)))]
    table = pa.concat_tables(read)
    assert table.column("n").equals(table.column("id"))


def test_a_state_from_before_row_groups_were_cut_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": np.arange(100)}), tmp_path / "x.parquet")
    whole = open_parquet(tmp_path / "x.parquet", target_block_bytes=1)
    pieces = cut_source(whole, 20)
    before, after = (
        Dataset(LogicalPlan(source)).repeat(2).random_shuffle_each_window(seed=1).split(1)[0]
        for source in (whole, pieces)
    )
    with pytest.raises(windrow.WindrowError, match="version of the order"):
        after.load_state_dict(before.state_dict())


def test_corrupt_pages_are_an_error_that_names_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"n": np.arange(1000), "s": [f"s{n}" for n in range(1000)]})
    pq.write_table(table, path, data_page_size=512, compression="zstd")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    content[middle : middle + 300] = b"\xff" * 300
    path.write_bytes(content)
    source = cut_source(open_parquet(path), 100)
    with pytest.raises(windrow.SourceError, match=r"row group 0, rows"):
        read_parts(source)


@pytest.mark.parametrize("row_group_size", [1_000, 2], ids=["to cut", "to join"])
def test_appended_files_are_admitted_where_sizes_follow_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_group_size: int
) -> None:
    """A state from before there were row groups to cut or to join, and with windows of another default size."""
    monkeypatch.setattr(logical_plan, "DEFAULT_WINDOW_BYTES", 1)
    pq.write_table(pa.table({"n": np.arange(10)}), tmp_path / "a.parquet")

    def read() -> Any:
        sizes = CutSizes(min_bytes=1_000, max_bytes=1_000, min_piece_bytes=500, page_rows=1)
        source = replace(open_parquet(tmp_path), format=ParquetFormat(cut_sizes=sizes))
        return Dataset(LogicalPlan(source)).window().repeat(3).random_shuffle_each_window(seed=1)

    (shard,) = read().split(1)
    epochs = shard.iter_epochs()
    assert sum(len(batch["n"]) for batch in next(epochs).iter_batches(4)) == 10
    state = shard.state_dict()
    shard.close()
    appended = pa.table({"n": np.arange(10, 1_000)})
    pq.write_table(appended, tmp_path / "b.parquet", row_group_size=row_group_size)
    with pytest.raises(windrow.StateError):
        read().split(1, state_dict=state)
    (shard,) = read().split(1, state_dict=state, allow_appended=True)
    found = [n for batch in next(iter(shard.iter_epochs())).iter_batches(64) for n in batch["n"].tolist()]
    assert sorted(found) == list(range(1_000))
    shard.close()


def test_row_groups_of_no_rows_are_not_cut(tmp_path: Path) -> None:
    """Division by their rows would be a warning, which is an error here."""
    schema = pa.schema([("n", pa.int64())])
    with pq.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
        for rows in (0, 50, 0):
            writer.write_table(pa.table({"n": np.arange(rows)}, schema=schema))
    source = open_parquet(tmp_path / "x.parquet")
    empty = replace(source.manifest, encoded_bytes=np.array([1 << 27] * len(source.manifest.rows)))
    cut = cut_source(replace(source, manifest=empty), 10)
    assert cut.blocks.rows.sum() == 50
    assert cut.blocks.rows.max() <= 10
