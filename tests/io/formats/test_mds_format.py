"""read_mds: shards as MosaicML Streaming writes them, by a small writer and by the library itself."""

from __future__ import annotations

import decimal
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import windrow
from tests.io.formats.mds_writer import SUFFIXES, encode, encode_list, write_mds
from tests.io.formats.shuffled_passes import check_passes
from tests.io.formats.stored import CountingStore, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from tests.library_versions import FSSPEC
from windrow.io.formats import mds_format

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _range(name: str) -> st.SearchStrategy[int]:
    bounds = np.iinfo(name)
    return st.integers(int(bounds.min), int(bounds.max))


def _arrays(dtype: str, shape: Any) -> st.SearchStrategy[Any]:
    elements = {"allow_nan": False} if dtype.startswith("f") else None
    return npst.arrays(dtype, shape, elements=elements)


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{name: (pa.type_for_alias(name), _range(name)) for name in _INTEGERS},
    "int": (pa.int64(), _range("int64")),
    "float16": (pa.float16(), st.floats(width=16, allow_nan=False)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "str": (pa.string(), st.text("aé漢", max_size=5)),
    "json": (pa.string(), st.dictionaries(st.text("ab", max_size=2), st.none() | st.integers(), max_size=2)),
    "bytes": (pa.binary(), st.binary(max_size=5)),
    "jpeg": (pa.binary(), st.binary(min_size=1, max_size=5)),
    "str_int": (pa.int64(), _range("int64")),
    "str_float": (pa.float64(), _FLOATS),
    "str_decimal": (pa.string(), st.integers().map(lambda digits: decimal.Decimal(f"{digits}E-3"))),
    "list[png]": (pa.list_(pa.binary()), st.lists(st.binary(max_size=3), max_size=3)),
    "jpeg_array": (pa.list_(pa.binary()), st.lists(st.binary(max_size=3), max_size=3)),
    "ndarray:int16:2,3": (pa.fixed_shape_tensor(pa.int16(), (2, 3)), _arrays("i2", (2, 3))),
    "ndarray:float32:4": (pa.list_(pa.float32(), 4), _arrays("f4", 4)),
    "ndarray:int32": (pa.list_(pa.int32()), _arrays("i4", st.tuples(st.integers(1, 300)))),
    "ndarray": (
        windrow.VariableShapeTensorType(pa.uint8(), 2),
        _arrays("u1", st.tuples(st.integers(1, 3), st.integers(1, 3))),
    ),
}


@st.composite
def samples(draw: st.DrawFn) -> tuple[dict[str, str], list[list[dict[str, Any]]]]:
    """Columns by their encodings, and the values of shards."""
    encodings = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5))
    columns = {f"c{number}": encoding for number, encoding in enumerate(encodings)}
    rows = st.fixed_dictionaries({name: KINDS[encoding][1] for name, encoding in columns.items()})
    return columns, draw(st.lists(st.lists(rows, min_size=1, max_size=8), min_size=1, max_size=4))


def as_python(encoding: str, value: Any) -> Any:
    """What ``take_batch`` returns for a value."""
    if encoding == "json":
        return json.dumps(value)
    return str(value) if encoding == "str_decimal" else value


def write_values(folder: Path, columns: dict[str, str], shards: Any, compression: str | None = None) -> Path:
    stored = [
        [{name: encode(columns[name], value) for name, value in row.items()} for row in rows]
        for rows in shards
    ]
    return write_mds(folder, columns, stored, compression)


def check_rows(ds: windrow.Dataset, columns: dict[str, str], rows: list[dict[str, Any]]) -> None:
    batch = ds.take_batch(len(rows))
    assert set(batch) == set(columns)
    for name, encoding in columns.items():
        expected = [as_python(encoding, row[name]) for row in rows]
        for found, value in zip(batch[name], expected, strict=True):
            if isinstance(value, np.ndarray):
                assert np.array_equal(found, value), name
                assert found.dtype == value.dtype
            else:
                assert (list(found) if isinstance(value, list) else found) == value, name


@examples(60)
@given(samples(), st.sampled_from(list(SUFFIXES)), st.integers(1, 200), st.integers(1, 600))
def test_rows_are_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[dict[str, str], list[list[dict[str, Any]]]],
    compression: str | None,
    part_bytes: int,
    block_bytes: int,
) -> None:
    columns, shards = drawn
    folder = write_values(tmp_path_factory.mktemp("mds") / "m", columns, shards, compression)
    rows = [row for shard in shards for row in shard]
    store, last = CountingStore(), f"c{len(columns) - 1}"
    for path in folder.iterdir():
        store.pipe_file(f"/m/{path.name}", path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mds_format, "PART_BYTES", part_bytes)
        ds = windrow.read_mds(folder, target_block_bytes=block_bytes)
        assert {field.name: field.type for field in ds.schema()} == {
            name: KINDS[encoding][0] for name, encoding in columns.items()
        }
        assert ds.count() == len(rows)
        check_rows(ds, columns, rows)
        stored = read_blocks(ds)
        remote = windrow.read_mds("/m", filesystem=store, columns=[last], target_block_bytes=block_bytes)
        assert remote.num_blocks() == ds.num_blocks()
        assert read_blocks(remote).equals(stored.select([last]))


NUMBERS = {"x": "int", "s": "str"}


def numbers(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"x": at, "s": f"row {at}"} for at in range(start, start + count)]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_windows_are_shuffled_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    monkeypatch.setattr(mds_format, "PART_BYTES", 400)
    shards = [numbers(50, 50 * part) for part in range(3)]
    ds = windrow.read_mds(write_values(tmp_path / "m", NUMBERS, shards, compression), target_block_bytes=1)
    assert ds.num_blocks() == 3 if compression else ds.num_blocks() > 6
    check_passes(ds, batches_before=7)
    same_order_as_parquet(ds, tmp_path)


def test_rows_have_ids_and_manifests_are_kept(tmp_path: Path) -> None:
    folder = write_values(tmp_path / "m", NUMBERS, [numbers(5), numbers(5, 5)])
    ds = windrow.read_mds(folder).options(row_id_column="id")
    assert [row["id"] for row in ds.take()] == list(range(10))
    assert [tuple(origin) for origin in ds.row_lineage([7])] == [(f"{folder}/shard.00001.mds", 0, 2)]
    windrow.read_mds(folder).save_manifest(tmp_path / "manifest")
    assert windrow.read_mds(folder, manifest=tmp_path / "manifest").take() == windrow.read_mds(folder).take()


def test_the_outermost_index_names_the_shards(tmp_path: Path) -> None:
    """A merged index stands above those of its parts; two directories without one are two datasets."""
    for part in range(2):
        write_values(tmp_path / "m" / f"{part}", NUMBERS, [numbers(2, 2 * part)])
    assert [row["x"] for row in windrow.read_mds(tmp_path / "m").take()] == [0, 1, 2, 3]
    assert [row["x"] for row in windrow.read_mds(tmp_path / "m" / "1" / "index.json").take()] == [2, 3]
    assert [row["x"] for row in windrow.read_mds([tmp_path / "m" / "1", tmp_path / "m" / "0"]).take()] == [
        2,
        3,
        0,
        1,
    ]
    merged = []
    for part in (1, 0):
        for shard in json.loads((tmp_path / "m" / f"{part}" / "index.json").read_text())["shards"]:
            shard["raw_data"]["basename"] = f"{part}/{shard['raw_data']['basename']}"
            merged.append(shard)
    (tmp_path / "m" / "index.json").write_text(json.dumps({"version": 2, "shards": merged}))
    (tmp_path / "m" / "shard.00009.mds").write_bytes(b"left over")
    ds = windrow.read_mds(tmp_path / "m", include_paths=True)
    assert [(row["x"], row["path"][-17:]) for row in ds.take()] == [
        (2, "1/shard.00000.mds"),
        (3, "1/shard.00000.mds"),
        (0, "0/shard.00000.mds"),
        (1, "0/shard.00000.mds"),
    ]


def test_shards_that_grew(tmp_path: Path) -> None:
    write_values(tmp_path / "m" / "0", {"x": "int32", "s": "str"}, [[{"x": 1, "s": "a"}]])
    write_values(tmp_path / "m" / "1", {"x": "int", "y": "float32"}, [[{"x": 2**40, "y": 0.5}]])
    ds = windrow.read_mds(tmp_path / "m")
    assert ds.take() == [{"s": "a", "x": 1, "y": None}, {"s": None, "x": 2**40, "y": 0.5}]
    given = windrow.read_mds(tmp_path / "m", schema=pa.schema([("y", pa.float64()), ("x", pa.string())]))
    assert given.take() == [{"y": None, "x": "1"}, {"y": 0.5, "x": str(2**40)}]
    assert windrow.read_mds(tmp_path / "m", columns=["y"], filter=pc.field("x") > 1).take() == [{"y": 0.5}]
    paths = windrow.read_mds(tmp_path / "m", columns=["path"], include_paths=True)
    assert [row["path"][-16:] for row in paths.take()] == ["/shard.00000.mds"] * 2


def test_text_of_numbers_is_parsed_as_the_schema_states(tmp_path: Path) -> None:
    large, small = 10**30, decimal.Decimal("-1.250")
    columns = {"i": "str_int", "d": "str_decimal"}
    folder = write_values(tmp_path / "m", columns, [[{"i": large, "d": small}]])
    with pytest.raises(
        windrow.SourceError, match=r"column 'i' is of the encoding 'str_int'.*as int64.*schema="
    ) as raised:
        windrow.read_mds(folder).take()
    assert "corrupt" not in str(raised.value)
    given = pa.schema([("i", pa.decimal128(38, 0)), ("d", pa.decimal128(5, 3))])
    assert windrow.read_mds(folder, schema=given).take() == [{"i": decimal.Decimal(large), "d": small}]


def test_arrays_of_several_kinds_are_named(tmp_path: Path) -> None:
    shards: list[list[dict[str, Any]]] = [
        [{"a": np.zeros(2, "i4")}],
        [{"a": np.zeros((1, 2), "i4")}],
        [{"a": np.full(1, 2**40)}],
    ]
    folder = write_values(tmp_path / "m", {"a": "ndarray"}, shards)
    ds = windrow.read_mds(folder)
    assert ds.schema().field("a").type == pa.list_(pa.int32())
    with pytest.raises(windrow.SourceError, match=r"00001.mds.*column 'a'") as raised:
        ds.take()
    assert "corrupt" not in str(raised.value)
    first = write_values(
        tmp_path / "f", {"a": "ndarray", "x": "int"}, [[{**row, "x": 1} for rows in shards for row in rows]]
    )
    with pytest.raises(
        windrow.SourceError, match=r"column 'a' in .*00000.mds is of arrays of 1 and 2 dim.*columns="
    ):
        windrow.read_mds(first)
    assert windrow.read_mds(first, columns=["x"]).count() == 3
    wide = write_values(tmp_path / "w", {"a": "ndarray"}, [shards[0], shards[2]])
    with pytest.raises(windrow.SourceError, match=r"00001.mds.*column 'a' is list<item: int64>.*schema="):
        windrow.read_mds(wide).take()
    given = windrow.read_mds(wide, schema=pa.schema([("a", pa.list_(pa.int64()))]))
    assert given.take() == [{"a": [0, 0]}, {"a": [2**40]}]


def test_sizes_are_estimated_by_the_first_samples(tmp_path: Path) -> None:
    rows = [{"x": at, "s": "t" * (at % 50), "b": bytes(at % 1000)} for at in range(2_000)]
    ds = windrow.read_mds(write_values(tmp_path / "m", {**NUMBERS, "b": "bytes"}, [rows]))
    source = source_of(ds)
    assert source.blocks.memory_bytes.sum() == pytest.approx(read_blocks(ds).nbytes, rel=0.1)
    assert source.blocks.rows_known
    assert source.null_counts == {"b": 0, "s": 0, "x": 0}


def test_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning reads the index and a few samples, and a block its samples."""
    monkeypatch.setattr(mds_format, "PART_BYTES", 2**18)
    rows = [{"b": bytes(2_000)} for _ in range(2_000)]
    folder, store = write_values(tmp_path / "m", {"b": "bytes"}, [rows, rows]), CountingStore()
    for path in folder.iterdir():
        store.pipe_file(f"/m/{path.name}", path.read_bytes())
    ds = windrow.read_mds("/m", filesystem=store, target_block_bytes=1)
    assert store.read_bytes < 2**18 + 50_000
    # fsspec 2024.2 asks for each file that it lists
    assert store.looks <= (3 if FSSPEC > (2024, 2) else 8)
    source = source_of(ds)
    store.forget()
    source.reader.read(source.addresses([5])[0])
    assert store.read_bytes < 2**18 + 2**17
    assert store.reads <= 4


def import_library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import MosaicML Streaming, with empty modules for torchvision, whose builds each fit one version of torch."""
    names = (
        "torchvision",
        "torchvision.datasets",
        "torchvision.transforms",
        "torchvision.transforms.functional",
    )
    for name in names:
        module: Any = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.VisionDataset, module.to_tensor = object, None
        monkeypatch.setitem(sys.modules, name, module)
    return pytest.importorskip("streaming")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compression", [None, "zstd", "gz:6", "bz2", "snappy", "br:3"])
def test_rows_are_those_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    library = import_library(monkeypatch)
    from streaming.base.format.mds.reader import MDSReader

    @given(samples())
    @examples(2)
    def check(drawn: tuple[dict[str, str], list[list[dict[str, Any]]]]) -> None:
        columns, shards = drawn
        # images of the library are Pillow's, and its lists of them too; it decodes those of an array as it reads
        as_bytes = ("jpeg", "list[png]", *(["jpeg_array"] if compression is None else []))
        columns = {name: "bytes" if kind in as_bytes else kind for name, kind in columns.items()}
        rows = [
            {
                name: encode_list(value, b"")
                if columns[name] == "bytes" and isinstance(value, list)
                else value
                for name, value in row.items()
            }
            for shard in shards
            for row in shard
        ]
        folder = tmp_path / "m"
        with library.MDSWriter(
            out=str(folder), columns=columns, compression=compression, size_limit=2_000, exist_ok=True
        ) as writer:
            for row in rows:
                writer.write(row)
        ds = windrow.read_mds(folder)
        check_rows(ds, columns, rows)
        if compression is None:
            index = json.loads((folder / "index.json").read_text())
            readers = [MDSReader.from_json(str(folder), "", shard) for shard in index["shards"]]
            theirs = [reader[at] for reader in readers for at in range(reader.samples)]
            assert len(theirs) == ds.count()
            check_rows(ds, columns, theirs)

    check()
