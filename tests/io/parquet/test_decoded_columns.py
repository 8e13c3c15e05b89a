"""Columns that the C decoder decodes, moved by the shuffle, equal those that Arrow reads."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.pools import FilledPool
from tests.io.chunks import COMPRESSIONS, needs_library
from tests.io.drawn_columns import FLAT, draw_nested, write_columns
from tests.io.files import open_parquet
from tests.library_versions import parquet_stores_nulls
from tests.shuffle.tables import contents_of, rows_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.source import can_scatter
from windrow.io.parquet import decoder_library
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput


class Watched:
    """A part that notes the columns that are read by way of Arrow."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)

    def select(self, columns: list[int]) -> pa.Table:
        self.read |= {self.part.schema.field(column).name for column in columns}
        return self.part.select(columns)


def bytes_of(map_output: MapOutput) -> list[bytes]:
    """All bytes of a map output that are sent: also of values below nulls, which no comparison of Arrow looks at."""
    rows, contents = map_output.num_rows, [bits.tobytes() for bits in map_output.validity.values()]
    for start, width, base in map_output.packing.tolist():
        contents += [map_output.values[start : start + width * rows].tobytes(), str(base).encode()]
    for column in map_output.others.columns:
        contents += [each or b"" for each in contents_of(column)]
    return contents


@contextmanager
def open_part(path: Path) -> Iterator[Any]:
    """The only part of a file, which is open meanwhile."""
    source = open_parquet(str(path), target_block_bytes=2**26)
    (address,) = source.addresses([0])
    parts = source.reader.parts(address)
    part = next(parts)
    assert can_scatter(part)
    yield part
    assert list(parts) == []


def group(part: Any, seed: int, pool: BufferPool) -> list[MapOutput]:
    rng = np.random.default_rng(seed)
    runs, places = (
        rng.integers(0, 6, part.num_rows).astype(np.uint16),
        np.arange(part.num_rows, dtype=np.uint32),
    )
    return group_rows(part, None, runs, places, np.array([0, 2, 2, 6]), pool)


def group_file(path: Path, seed: int) -> set[str]:
    """Group the rows of a file as decoded, and as Arrow reads them; returns the columns that C did not decode."""
    expected = group(pq.ParquetFile(path).read(), seed, BufferPool(0))
    with open_part(path) as part:
        watched = Watched(part)
        decoded = group(watched, seed, FilledPool(0))
        again = group(part, seed, FilledPool(0xFF))
    for one, other, twice in zip(decoded, expected, again, strict=True):
        found = rows_of(one)
        found.validate(full=True)
        assert found.equals(rows_of(other))
        assert bytes_of(one) == bytes_of(twice)
    return watched.read


def find_dense(path: Path) -> set[str]:
    """The columns with a chunk that is compressed more than pages are that C decodes."""
    metadata = pq.ParquetFile(path).metadata
    chunks = [
        metadata.row_group(number).column(column)
        for number in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    return {
        chunk.path_in_schema
        for chunk in chunks
        if chunk.compression in decoder_library.CODECS
        and chunk.total_uncompressed_size
        > decoder_library.CODECS[chunk.compression].max_ratio * chunk.total_compressed_size
    }


@needs_library
@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flat_columns_are_those_that_arrow_reads(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.parquet"
    seed = write_columns(path, data, FLAT)
    assert group_file(path, seed) <= find_dense(path)


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nested_columns_are_those_that_arrow_reads(tmp_path: Path, data: st.DataObject) -> None:
    seed = write_columns(tmp_path / "x.parquet", data, {"nested": draw_nested})
    assert not group_file(tmp_path / "x.parquet", seed)


DECODED: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "nulls": (pa.array([1, None, 3], pa.int64()), {}),
    "nulls without statistics": (pa.array([1, None, 3], pa.int64()), {"write_statistics": False}),
    "nulls, second version": (
        pa.array([1, None, 3], pa.int64()),
        {"write_statistics": False, "data_page_version": "2.0"},
    ),
    "zstd": (pa.array([1, 2, 3], pa.int64()), {"compression": "zstd"}),
    "lz4": (pa.array([1, 2, 3], pa.int64()), {"compression": "lz4"}),
    "delta": (
        pa.array([1, 2, 3], pa.int64()),
        {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    ),
    "byte stream split": (
        pa.array([1.0, 2, 3], pa.float64()),
        {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    ),
    "boolean": (pa.array([True, False, True]), {}),
    "decimal": (pa.array([Decimal("1.23"), Decimal("-4.50"), None], pa.decimal128(9, 2)), {}),
    "list": (pa.array([[1], [2, 3], []], pa.list_(pa.int64())), {}),
    "list of structs": (pa.array([[{"x": 1, "y": 2.0}], None, []]), {}),
    "struct": (pa.array([{"x": 1}, {"x": 2}, {"x": 3}]), {}),
    "text": (pa.array(["a", None, "b"]), {}),
    "text without statistics": (pa.array(["a", None, "b"]), {"write_statistics": False}),
    "text in zstd": (pa.array(["a", "b", "c"]), {"compression": "zstd"}),
}


@needs_library
@pytest.mark.parametrize("case", DECODED)
def test_supported_columns_are_decoded(tmp_path: Path, case: str) -> None:
    column, options = DECODED[case]
    if options.get("compression", "none") not in COMPRESSIONS:
        pytest.skip("the library of the codec is not installed")
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet", **options)
    assert not group_file(tmp_path / "x.parquet", 0)


ARROW_READS: dict[str, pa.Array] = {
    "null element": pa.array([[1, None], [2], None]),
    "null struct in a list": pa.array([[{"x": 1}, None], []]),
    "null field in a list": pa.array([[{"x": 1}, {"x": None}], []]),
    "null struct": pa.array([{"x": 1}, None]),
    "null field": pa.array([{"x": 1}, {"x": None}]),
    "null list of fixed size": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    "list of texts": pa.array([["a"], [None, "b"]]),
    "list of lists": pa.array([[[1], []], None]),
    "struct in a struct": pa.array([{"x": {"y": 1}}]),
    "struct with text": pa.array([{"x": 1, "y": "a"}]),
    "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2]], pa.list_(pa.int32(), 2))
    ),
    "narrow numbers": pa.array([[1], []], pa.list_(pa.int8())),
    "list of booleans": pa.array([[True], []]),
}


@needs_library
@pytest.mark.parametrize("case", ARROW_READS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_other_columns_are_read_by_arrow(tmp_path: Path, case: str, version: str) -> None:
    table = pa.table({"x": ARROW_READS[case]})
    if case == "null list of fixed size" and not parquet_stores_nulls(table.schema.field("x").type):
        pytest.skip("this pyarrow does not read nulls of lists of a fixed size")
    pq.write_table(table, tmp_path / "x.parquet", data_page_version=version)
    assert group_file(tmp_path / "x.parquet", 0) == {"x"}


@needs_library
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_codec_whose_library_is_missing_is_read_by_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.delitem(decoder_library.CODECS, compression.upper(), raising=False)
    table = pa.table({"flat": [1, None], "text": ["a", None], "list": [[1], []]})
    pq.write_table(table, tmp_path / "x.parquet", compression=compression)
    assert group_file(tmp_path / "x.parquet", 0) == {"flat", "text", "list"}


@needs_library
def test_nulls_do_not_widen_a_packing(tmp_path: Path) -> None:
    """Bounds are those of the values that are not null, also where nulls are in one row group only."""
    column = pa.array([1_000, 1_100, None, None, 1_255, None, 1_001, None], pa.int64())
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet", row_group_size=2)
    assert not group_file(tmp_path / "x.parquet", 0)
    one = pa.table({"x": column[:6]})
    pq.write_table(one, tmp_path / "x.parquet", row_group_size=3)
    with open_part(tmp_path / "x.parquet") as part:
        for rows in (part, one):
            outputs = group(rows, 0, FilledPool(0xAB))
            assert {tuple(output.packing[0, 1:].tolist()) for output in outputs} == {(1, 1_000)}
            stored = [output.values[: output.num_rows].tolist() for output in outputs]
            assert sorted(value for each in stored for value in each) == [0, 0, 0, 0, 100, 255]


@needs_library
def test_file_with_empty_row_groups(tmp_path: Path) -> None:
    columns = {
        "x": [1, None, 3],
        "t": ["a", None, ""],
        "n": [[1], None, []],
        "s": [{"a": 1}, {"a": 2}, {"a": 3}],
    }
    table = pa.table(columns)
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema) as writer:
        for at in range(3):
            writer.write_table(table.slice(0, 0))
            writer.write_table(table.slice(at, 1))
        writer.write_table(table.slice(0, 0))
    assert pq.read_metadata(tmp_path / "x.parquet").num_row_groups == 7
    group_file(tmp_path / "x.parquet", 0)


@needs_library
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_threads_do_not_share_memory(tmp_path: Path, compression: str) -> None:
    columns = {"x": np.arange(20_000) % 999, "t": [f"text {n % 77}" for n in range(20_000)]}
    nested = pa.ListArray.from_arrays(np.arange(0, 20_001, 2).astype(np.int32), pa.array(np.arange(20_000)))
    table = pa.table(columns).slice(0, 10_000).append_column("n", nested)
    pq.write_table(table, tmp_path / "x.parquet", compression=compression)
    with ThreadPoolExecutor(4) as pool:
        assert (
            list(pool.map(lambda seed: group_file(tmp_path / "x.parquet", seed), range(16))) == [set()] * 16
        )


def test_big_endian_machine_decodes_nothing_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    assert runpy.run_path(decoder_library.__file__)["LIBRARY"] is None
