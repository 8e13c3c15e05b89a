"""Columns that the C decoder decodes, moved by the shuffle, equal those that Arrow reads."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
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
from numpy.typing import NDArray

from tests.io.chunks import COMPRESSIONS, WRITING, needs_library
from tests.io.files import open_parquet
from tests.shuffle.tables import rows_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.source import can_scatter
from windrow.io.parquet import codecs, decoder_library
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


class FilledPool(BufferPool):
    """A pool whose memory holds one byte everywhere."""

    def __init__(self, byte: int) -> None:
        super().__init__(0)
        self._byte = byte

    def take_many(self, nbytes: int, count: int) -> list[NDArray[np.uint8]]:
        return [np.full(nbytes, self._byte, np.uint8) for _ in range(count)]


def contents_of(map_output: MapOutput) -> list[bytes]:
    """All bytes of a map output that are sent: also of values below nulls, which no comparison of Arrow looks at."""
    rows, contents = map_output.num_rows, [bits.tobytes() for bits in map_output.validity.values()]
    for start, width, base in map_output.packing.tolist():
        contents += [map_output.values[start : start + width * rows].tobytes(), str(base).encode()]
    for column in map_output.others.columns:
        contents += [b"" if each is None else each.to_pybytes() for each in column.buffers()]
    return contents


@contextmanager
def open_part(path: Path) -> Iterator[Any]:
    """The only part of a file, which is open meanwhile."""
    source = open_parquet(str(path))
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
        assert contents_of(one) == contents_of(twice)
    return watched.read


# --- random columns


def draw_integers(width: int, rows: int, distinct: int, rng: np.random.Generator) -> NDArray[Any]:
    """Integers of all sizes, with extreme values, whose differences wrap around, or in one narrow range."""
    kind, bits = np.dtype(f"i{width}"), int(rng.integers(0, 8 * width))
    info, base = np.iinfo(kind), int(rng.integers(-(2**31), 2**31))
    values = rng.integers(info.min, info.max, distinct, kind, endpoint=True) >> kind.type(bits)
    if bits > 8:
        # numbers near a base, which map outputs hold in fewer bytes
        values = (values.astype(np.int64) + base).astype(kind) if width == 8 else values
    elif rng.integers(2):
        values[rng.integers(0, distinct, 2)] = info.min, info.max
    return values[rng.integers(0, distinct, rows)]


def as_kind(kind: pa.DataType) -> Callable[..., pa.Array]:
    def draw(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
        words = draw_integers(kind.bit_width // 8, rows, distinct, rng)
        words = words % 86_400_000_000 if pa.types.is_time64(kind) else words
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(words)])

    return draw


def draw_floats(kind: Any) -> Callable[..., pa.Array]:
    def draw(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
        values = rng.standard_normal(distinct).astype(kind)
        values[rng.integers(0, distinct)] = rng.choice([0.0, -0.0, np.inf, np.finfo(kind).tiny])
        return pa.array(values[rng.integers(0, distinct, rows)])

    return draw


def draw_booleans(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    return pa.array(rng.random(rows) < rng.choice([0.0, 0.1, 0.5, 1.0]))


def draw_decimals(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    precision = int(rng.integers(1, 39))
    most = 10**precision - 1
    some = [
        int.from_bytes(rng.bytes(20), "little", signed=True) % (2 * most + 1) - most for _ in range(distinct)
    ]
    some[0] = int(rng.integers(-1, 2)) * most
    # from an integer, since arithmetic of decimals rounds to 28 digits
    whole = [Decimal((int(number < 0), tuple(map(int, str(abs(number)))), 0)) for number in some]
    return pa.array([whole[at] for at in rng.integers(0, distinct, rows)], pa.decimal128(precision, 0))


def draw_texts(kind: pa.DataType) -> Callable[..., pa.Array]:
    def draw(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
        longest = int(rng.choice([0, 7, 33, 200]))
        texts = ["é" * int(length) for length in rng.integers(0, longest, distinct, endpoint=True)]
        return pa.array([texts[at] for at in rng.integers(0, distinct, rows)], pa.string()).cast(kind)

    return draw


def draw_valid(rows: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which rows are not null: all, none, most, few, or runs of rows."""
    share = rng.choice([0.0, 0.02, 0.5, 0.98, 1.0, -1.0])
    if share >= 0:
        valid = rng.random(rows) >= share
    else:
        valid = np.repeat(rng.random(rows) < 0.5, rng.integers(1, 90, rows))[:rows]
    return np.asarray(valid)


def with_nulls(array: pa.Array, rng: np.random.Generator) -> pa.Array:
    """The same array, where some values are null; what lies below them stays."""
    buffers = array.buffers()
    valid = pa.py_buffer(np.packbits(draw_valid(len(array), rng), bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [valid, *buffers[1:]])


FLAT: dict[str, Callable[..., pa.Array]] = {
    str(kind): as_kind(kind)
    for kind in (
        pa.int32(),
        pa.int64(),
        pa.uint32(),
        pa.uint64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("ms", "UTC"),
        pa.time64("us"),
    )
}
FLAT |= {"float32": draw_floats(np.float32), "float64": draw_floats(np.float64)}
FLAT |= {"bool": draw_booleans, "decimal": draw_decimals}
FLAT |= {
    str(kind): draw_texts(kind) for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
}
NUMBERS = ("int32", "int64", "uint32", "date32[day]", "float32", "float64")


def draw_items(
    rows: int, distinct: int, nullable: bool, is_struct: bool, rng: np.random.Generator
) -> pa.Array:
    names = rng.choice(NUMBERS, 3 if is_struct else 1)
    drawn = [FLAT[name](rows, distinct, rng) for name in names]
    if not is_struct:
        return drawn[0]
    fields = [pa.field(name, array.type, nullable) for name, array in zip("abc", drawn, strict=False)]
    return pa.StructArray.from_arrays(drawn, fields=fields)


def draw_nested(rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    """Lists of numbers or of structs, some of which are null or empty, or structs."""
    how = rng.choice(["struct", "list", "large", "fixed"])
    nullable, is_struct = bool(rng.integers(2)), bool(rng.integers(2))
    if how == "struct":
        return draw_items(rows, distinct, nullable, True, rng)
    size = int(rng.integers(1, 6))
    lengths = np.full(rows, size) if how == "fixed" else rng.integers(0, size, rows)
    if how != "fixed" and rng.integers(4) == 0:
        lengths[rng.integers(0, rows, 2)] = 400  # spans pages
    valid = draw_valid(rows, rng) if how != "fixed" else np.ones(rows, bool)
    lengths[~valid] = 0
    items = draw_items(int(lengths.sum()), distinct, nullable, is_struct, rng)
    field = pa.field("item", items.type, nullable)
    if how == "fixed":
        return pa.FixedSizeListArray.from_arrays(items, type=pa.list_(field, size))
    kind = pa.large_list(field) if how == "large" else pa.list_(field)
    offsets = np.cumsum([0, *lengths], dtype=np.int64 if how == "large" else np.int32)
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(offsets)], children=[items])


def draw_encoding(kind: pa.DataType, rng: np.random.Generator) -> str | None:
    """An encoding that Arrow writes for a type; None for a dictionary."""
    if pa.types.is_boolean(kind):
        return str(rng.choice(["PLAIN", "RLE"]))
    choices = ["PLAIN", None, None]
    is_text = any(check(kind) for check in (pa.types.is_string, pa.types.is_binary)) or "large" in str(kind)
    if pa.types.is_floating(kind):
        choices += ["BYTE_STREAM_SPLIT"] * 2
    elif not is_text and not pa.types.is_decimal(kind):
        choices += ["BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED", "DELTA_BINARY_PACKED"]
    return choices[rng.integers(len(choices))]


def leaves_of(field: pa.Field, path: str) -> list[tuple[str, pa.DataType]]:
    if pa.types.is_struct(field.type):
        return [leaf for inner in field.type for leaf in leaves_of(inner, f"{path}.{inner.name}")]
    if field.type.num_fields:
        return leaves_of(field.type.value_field, f"{path}.list.element")
    return [(path, field.type)]


def write_columns(path: Path, data: st.DataObject, draws: dict[str, Callable[..., pa.Array]]) -> int:
    """Write one to three columns; returns the seed of their random numbers."""
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    rows = data.draw(st.integers(1, 1_500))
    names = data.draw(st.lists(st.sampled_from(sorted(draws)), min_size=1, max_size=3))
    arrays, fields = [], []
    for at, name in enumerate(names):
        array = draws[name](rows, data.draw(st.sampled_from([1, 3, 100, 2_000])), rng)
        is_flat = not array.type.num_fields
        if is_flat and data.draw(st.booleans()):
            array = with_nulls(array, rng)
        arrays.append(array)
        fields.append(pa.field(f"{at}", array.type, bool(array.null_count or rng.integers(2))))
    table = pa.table(arrays, schema=pa.schema(fields))
    leaves = [leaf for field in table.schema for leaf in leaves_of(field, field.name)]
    encodings = {path: draw_encoding(kind, rng) for path, kind in leaves}
    options = data.draw(WRITING)
    del options["nullable"], options["use_dictionary"]  # each field and leaf has its own
    pq.write_table(
        table,
        path,
        use_dictionary=[name for name, encoding in encodings.items() if encoding is None],
        column_encoding={name: encoding for name, encoding in encodings.items() if encoding},
        **options,
    )
    return seed


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_flat_columns_are_those_that_arrow_reads(tmp_path: Path, data: st.DataObject) -> None:
    seed = write_columns(tmp_path / "x.parquet", data, FLAT)
    assert not group_file(tmp_path / "x.parquet", seed)


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
    pq.write_table(table, tmp_path / "x.parquet", data_page_version=version)
    assert group_file(tmp_path / "x.parquet", 0) == {"x"}


@needs_library
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_codec_whose_library_is_missing_is_read_by_arrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.delitem(codecs.CODECS, compression.upper(), raising=False)
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
