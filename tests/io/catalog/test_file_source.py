from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from tests.io.files import open_parquet, read_all, write
from windrow.core.errors import PlanError, SourceError
from windrow.core.source import Source
from windrow.io.catalog.file_source import FileSource
from windrow.io.storage.filesystems import Files


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, stop), pa.int64()), "x": np.arange(start, stop) / 2})


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    for place in range(3):
        write(tmp_path / f"part-{place}.parquet", numbers(100 * place, 100 * place + 100), row_group_size=30)
    return tmp_path


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    for year, start in ((2019, 0), (2020, 100), (2021, 200)):
        write(tmp_path / f"year={year}" / "part.parquet", numbers(start, start + 100), row_group_size=30)
    return tmp_path


def test_source_implements_the_protocol(flat: Path) -> None:
    source: Source = open_parquet(flat)
    assert source.schema.names == ["n", "x"]
    assert source.blocks.rows.tolist() == [30, 30, 30, 10] * 3
    assert source.blocks.rows_known
    assert source.blocks.bytes_exact
    assert source.null_counts == {"n": 0, "x": 0}
    assert source.describe() == "3 fragments, 12 row groups; 2 of 2 columns"
    assert [address.origin for address in source.addresses([5])] == [f"{flat}/part-1.parquet, row group 1"]


def test_all_rows_in_stored_order(flat: Path) -> None:
    assert read_all(open_parquet(flat)).column("n").to_pylist() == list(range(300))


def test_columns_are_read_in_the_requested_order(flat: Path) -> None:
    source = open_parquet(flat, columns=["x", "n"])
    assert source.schema.names == ["x", "n"]
    assert read_all(source).column_names == ["x", "n"]
    assert open_parquet(flat, columns=["x"]).describe() == "3 fragments, 12 row groups; 1 of 2 columns"


def test_blocks_do_not_depend_on_columns_or_row_filters(flat: Path) -> None:
    whole = open_parquet(flat, target_block_bytes=600)
    assert len(whole.blocks.rows) > 3
    for other in (
        open_parquet(flat, columns=["x"], target_block_bytes=600),
        open_parquet(flat, filter=pc.field("n") > 250, target_block_bytes=600),
    ):
        assert other.blocks.rows.tolist() == whole.blocks.rows.tolist()
        assert [a.origin for a in other.addresses(range(5))] == [a.origin for a in whole.addresses(range(5))]


def test_contents_depend_on_columns_and_filters(flat: Path) -> None:
    others: list[dict[str, Any]] = [
        {},
        {"columns": ["n"]},
        {"columns": ["x"]},
        {"columns": ["x", "n"]},
        {"filter": pc.field("n") > 5},
        {"filter": pc.field("n") > 6},
    ]
    contents = [open_parquet(flat, **options).contents for options in others]
    assert len(set(contents)) == len(others)
    assert contents == [open_parquet(flat, **options).contents for options in others]


def test_contents_depend_on_block_boundaries(tmp_path: Path) -> None:
    schema = numbers(0, 0).schema
    with pq.ParquetWriter(tmp_path / "x.parquet", schema, compression="none", use_dictionary=False) as writer:
        for rows in (3_000, 2_000, 2_000, 3_000):
            writer.write_table(numbers(0, rows))
    one, other = (open_parquet(tmp_path, target_block_bytes=target) for target in (90_000, 120_000))
    assert one.blocks.rows.tolist() == [5_000, 5_000]
    assert other.blocks.rows.tolist() == [7_000, 3_000]
    assert one.contents != other.contents


def test_row_filter_is_exact_and_leaves_counts_unknown(flat: Path) -> None:
    source = open_parquet(
        flat, columns=["x"], filter=(pc.bit_wise_and(pc.field("n"), 7) == 0) & (pc.field("n") > 31)
    )
    assert not source.blocks.rows_known
    expected = [n / 2 for n in range(300) if n % 8 == 0 and n > 31]
    assert read_all(source).column("x").to_pylist() == expected


def test_partition_filter_drops_fragments_exactly(hive: Path) -> None:
    source = open_parquet(hive, filter=pc.field("year") >= 2020)
    assert source.blocks.rows_known
    assert source.blocks.rows.tolist() == [30, 30, 30, 10] * 2
    assert source.row_filter is None
    table = read_all(source)
    assert table.column("n").to_pylist() == list(range(100, 300))
    assert table.column("year").to_pylist() == [2020] * 100 + [2021] * 100
    assert source.describe() == ("2 fragments of 3 (others filtered out), 8 row groups; 3 of 3 columns")


def test_a_mixed_filter_is_exact(hive: Path) -> None:
    source = open_parquet(hive, columns=["n"], filter=(pc.field("year") == 2020) | (pc.field("n") == 7))
    assert not source.blocks.rows_known
    assert len(source.blocks.rows) == 12
    assert read_all(source).column("n").to_pylist() == [7, *range(100, 200)]


def test_partition_columns_can_be_read_alone(hive: Path) -> None:
    for row_filter in (None, pc.field("n") >= 0):
        table = read_all(open_parquet(hive, columns=["year"], filter=row_filter))
        assert table.schema == pa.schema([("year", pa.int32())])
        assert table.column("year").to_pylist() == [2019] * 100 + [2020] * 100 + [2021] * 100


def test_without_partitioning_directory_names_are_ignored(hive: Path) -> None:
    assert open_parquet(hive, partitioning=None).schema.names == ["n", "x"]


def test_stored_column_overrides_partition_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path / "n=1" / "a.parquet", numbers(5, 8))
    source = open_parquet(tmp_path)
    assert source.schema.names == ["n", "x"]
    assert read_all(source).column("n").to_pylist() == [5, 6, 7]


def test_partition_columns_count_in_decoded_bytes(hive: Path) -> None:
    narrow, wide = open_parquet(hive, columns=["n"]).blocks, open_parquet(hive, columns=["n", "year"]).blocks
    assert (wide.decoded_bytes - narrow.decoded_bytes).tolist() == [120, 120, 120, 40] * 3


def test_null_counts(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3], "b": [[1], None, []], "c": [[1], [2], [3]], "d": [None, None, None]})
    write(tmp_path / "k=__HIVE_DEFAULT_PARTITION__" / "a.parquet", table)
    write(tmp_path / "k=1" / "a.parquet", table)
    assert open_parquet(tmp_path).null_counts == {"a": 2, "b": None, "c": 0, "d": 6, "k": 3}
    # a filter can drop nulls, but never adds any
    assert open_parquet(tmp_path, filter=pc.field("a").is_valid()).null_counts == {
        "a": None,
        "b": None,
        "c": 0,
        "d": None,
        "k": None,
    }
    write(tmp_path / "k=1" / "b.parquet", table, write_statistics=False)
    assert open_parquet(tmp_path, columns=["a", "k"]).null_counts == {"a": None, "k": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["N"]}, "columns= has no column 'N': did you mean 'n'"),
        ({"columns": ["zebra"]}, "columns= has no column 'zebra': there are 'n', 'x'"),
        ({"columns": []}, "selects nothing"),
        ({"columns": ["n", "n"]}, "names 'n' more than once"),
        ({"columns": "n"}, "give a list of column names"),
        ({"filter": pc.field("nn") > 1}, "filter= has no column 'nn': did you mean 'n'"),
        ({"filter": pc.field("n") + 1}, "gives int64, not true or false"),
        ({"filter": pc.field("n") > "a"}, "does not fit the columns"),
        ({"filter": "n > 1"}, "filter= is a str: give a pyarrow expression"),
        ({"partitioning": "directory"}, "partitioning='directory'"),
        ({"target_block_bytes": 0}, "at least 1 byte"),
        ({"filesystem": object()}, "filesystem= is a object: give an fsspec"),
        ({"filesystem": object(), "storage_options": {}}, "are mutually exclusive"),
    ],
)
def test_wrong_arguments_raise(flat: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=r"(?s).*") as caught:
        open_parquet(flat, **options)
    assert message in str(caught.value)


def test_missing_paths_raise() -> None:
    with pytest.raises(PlanError, match=r"give paths, or the manifest="):
        open_parquet(None)
    with pytest.raises(PlanError, match=r"give at least one path"):
        open_parquet([])


def test_manifest_avoids_listing_and_reading_footers(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_parquet(flat)
    first.save_manifest(flat / "_manifest.npz")

    def refuse(*_: object) -> None:
        raise AssertionError("a footer is read")

    monkeypatch.setattr("windrow.io.parquet.block_reader.read_footer", refuse)
    monkeypatch.setattr("windrow.io.catalog.discovery.list_files", refuse)
    for again in (
        open_parquet(flat, manifest=flat / "_manifest.npz"),
        open_parquet(None, manifest=str(flat / "_manifest.npz")),
        open_parquet(f"{flat}/*.parquet", manifest=first.manifest),
        open_parquet([flat / "part-0.parquet", flat / "part-1.parquet"], manifest=first.manifest),
    ):
        assert again.fingerprint == first.fingerprint
        assert again.schema == first.schema
        assert again.addresses([0, 2]) == first.addresses([0, 2])
        assert read_all(again).equals(read_all(first))


def test_manifest_reads_moved_data(flat: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    first = open_parquet(flat)
    expected = read_all(first)
    moved = tmp_path_factory.mktemp("moved") / "data"
    flat.rename(moved)
    assert read_all(open_parquet(moved, manifest=first.manifest)).equals(expected)
    with pytest.raises(SourceError, match=r"part-0.parquet, row group 0: the file is missing"):
        read_all(open_parquet(None, manifest=first.manifest))


def test_fingerprints_depend_on_the_data_alone(flat: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    for path in flat.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert open_parquet(other).fingerprint == open_parquet(flat).fingerprint
    assert open_parquet(other, columns=["x"]).fingerprint == open_parquet(flat).fingerprint
    write(other / "part-0.parquet", numbers(1, 101), row_group_size=30)
    assert open_parquet(other).fingerprint != open_parquet(flat).fingerprint
    (flat / "part-0.parquet").rename(flat / "part-9.parquet")
    assert open_parquet(flat).fingerprint != open_parquet(other).fingerprint


def test_sources_and_readers_pickle(hive: Path) -> None:
    source = open_parquet(hive, filter=pc.field("n") > 150)
    assert read_all(pickle.loads(pickle.dumps(source))).equals(read_all(source))
    reader, address = pickle.loads(pickle.dumps((source.reader, source.addresses([7])[0])))
    assert reader.read(address).column("n").to_pylist() == list(range(190, 200))
    assert len(pickle.dumps((source.reader, source.addresses([7])))) < 4096


def test_pickle_omits_cached_results(hive: Path) -> None:
    source = open_parquet(hive, filter=pc.field("year") >= 2020, target_block_bytes=1)
    size = len(pickle.dumps(source))
    expected = source.blocks.rows.tolist(), source.addresses([0, 7]), source.describe(), source.null_counts
    assert len(pickle.dumps(source)) == size
    again = pickle.loads(pickle.dumps(source))
    assert not {"blocks", "null_counts", "_cuts", "_fragment_filter"} & vars(again).keys()
    assert (
        again.blocks.rows.tolist(),
        again.addresses([0, 7]),
        again.describe(),
        again.null_counts,
    ) == expected


def test_file_without_rows_is_readable(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", numbers(0, 0))
    source = open_parquet(tmp_path)
    assert source.blocks.rows.sum() == 0
    assert read_all(source).num_rows == 0


def test_pandas_metadata_is_dropped(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"n": [1, 2]}, index=pd.Index([7, 8], name="i"))
    frame.to_parquet(tmp_path / "a.parquet")
    source = open_parquet(tmp_path)
    assert source.schema.metadata is None
    assert source.schema.names == ["n", "i"]


def test_reading_in_another_process_imports_no_heavy_library(flat: Path, tmp_path: Path) -> None:
    source = open_parquet(flat)
    (tmp_path / "reader").write_bytes(pickle.dumps((source.reader, source.addresses([0])[0])))
    code = (
        "import pickle, sys, windrow.io.catalog.file_source\n"
        "assert not {'pandas', 'fsspec', 'torch', 'ray'} & set(sys.modules)\n"
        "reader, address = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert reader.read(address).num_rows == 30\n"
        "assert not {'pandas', 'fsspec', 'torch', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "reader")], check=True)


def test_repr_is_short(flat: Path) -> None:
    source: FileSource = open_parquet(flat)
    assert repr(source) == f"Parquet('{flat}': 3 fragments, 12 row groups; 2 of 2 columns)"
    assert repr(source.manifest) == f"Manifest(3 fragments, 12 row groups, '{flat}')"


def test_rows_equal_those_of_pyarrow(hive: Path) -> None:
    expected = pq.read_table(hive)
    table = read_all(open_parquet(hive))
    assert table.column("n").equals(expected.column("n"))


@pytest.mark.parametrize("filesystem", [None, pa_fs.LocalFileSystem(), fsspec.filesystem("memory")])
def test_stamp_of_a_missing_file_raises(tmp_path: Path, filesystem: Any) -> None:
    with pytest.raises(SourceError, match=r"x.parquet: .*read the dataset again"):
        Files(str(tmp_path), filesystem).stamp("x.parquet")
