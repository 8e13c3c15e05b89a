"""read_numpy returns the arrays that NumPy saves, with rows as the first axis."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

import windrow
from tests.io.formats.stored import CountingStore, equal, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError
from windrow.io.formats import numpy_format as numpy_format

DTYPES = st.sampled_from(
    [
        "?",
        "i1",
        ">i2",
        "i4",
        ">i8",
        "u1",
        "u8",
        "f2",
        ">f4",
        "f8",
        "M8[s]",
        "M8[ns]",
        "M8[D]",
        "m8[us]",
        "U3",
        "S4",
    ]
)


def arrays(rows: int) -> st.SearchStrategy[NDArray[Any]]:
    shapes = st.lists(st.integers(0, 3), max_size=3).map(lambda inner: (rows, *inner))
    made = DTYPES.flatmap(lambda dtype: npst.arrays(dtype, shapes, elements=_elements(dtype)))
    return st.tuples(made, st.booleans()).map(lambda pair: np.asarray(pair[0], order="F" if pair[1] else "C"))


def _elements(dtype: str) -> Any:
    if dtype.endswith("M8[D]"):
        return st.integers(1 - 2**31, 2**31 - 1).map(lambda day: np.datetime64(day, "D"))
    # Arrow stores only Unicode that can be encoded, and NumPy drops trailing zeros
    text = st.text("aé漢\0", max_size=3).map(lambda text: text.rstrip("\0"))
    return text if dtype[0] == "U" else None


def same(found: NDArray[Any], saved: NDArray[Any]) -> None:
    assert found.shape == saved.shape
    if saved.dtype.kind in "US":
        assert found.tolist() == saved.astype(object).tolist()
    else:
        assert found.dtype == saved.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, saved)


@examples(30)
@given(st.data(), st.integers(1, 20), st.integers(1, 100), st.integers(1, 400))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    rows: int,
    part_bytes: int,
    block_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("numpy")
    saved = {
        f"a{number}": array
        for number, array in enumerate(data.draw(st.lists(arrays(rows), min_size=1, max_size=3)))
    }
    save: Any = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
    np.save(folder / "one.npy", saved["a0"])
    save(folder / "some.npz", **saved)
    store = CountingStore()
    store.pipe_file("/some.npz", (folder / "some.npz").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_format, "PART_BYTES", part_bytes)
        one = windrow.read_numpy(folder / "one.npy", target_block_bytes=block_bytes)
        some = windrow.read_numpy(folder / "some.npz", target_block_bytes=block_bytes)
        remote = windrow.read_numpy("/some.npz", filesystem=store, target_block_bytes=block_bytes)
        assert equal(read_blocks(some), read_blocks(remote))
        assert read_blocks(one).num_rows == one.count() == rows
        same(one.take_batch(rows)["data"], saved["a0"])
        batch = some.take_batch(rows)
        for name, array in saved.items():
            same(batch[name], array)


def test_types_and_sizes(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz", x=np.arange(5), image=np.zeros((5, 4, 3), np.uint8), pair=np.zeros((5, 2), "f4")
    )
    source = source_of(windrow.read_numpy(tmp_path / "x.npz"))
    assert source.schema == pa.schema(
        [
            ("x", pa.int64()),
            ("image", pa.fixed_shape_tensor(pa.uint8(), (4, 3))),
            ("pair", pa.list_(pa.float32(), 2)),
        ]
    )
    assert source.blocks.rows_known
    assert source.blocks.bytes_exact
    assert source.blocks.memory_bytes.tolist() == [5 * (8 + 12 + 8)]
    assert source.null_counts == {"x": 0, "image": 0, "pair": 0}


def test_missing_times_are_null(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array(["2020-01-01", "NaT"], "M8[ms]"))
    ds = windrow.read_numpy(tmp_path / "t.npy", column="at")
    assert ds.take()[1] == {"at": None}
    assert source_of(ds).null_counts == {"at": None}


def test_structured_arrays_are_columns(tmp_path: Path) -> None:
    saved = np.zeros(3, [("id", "i4"), ("vector", "f4", (2,)), ("name", "U4")])
    saved["id"], saved["name"] = [1, 2, 3], ["a", "b", "c"]
    np.save(tmp_path / "s.npy", saved)
    ds = windrow.read_numpy(tmp_path / "s.npy")
    assert ds.take(1) == [{"id": 1, "vector": [0.0, 0.0], "name": "a"}]
    assert windrow.read_numpy(tmp_path / "s.npy", columns=["name"]).take_batch()["name"].tolist() == [
        "a",
        "b",
        "c",
    ]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(5), "single value"),
        (np.array([{}, None]), "pickles, which windrow never loads"),
        (np.zeros(2, "c8"), r"complex64.*save \.real and \.imag"),
        (np.zeros(2, "M8[h]"), r"datetime64\[h\].*astype"),
        (np.zeros(2, np.longdouble), "another dtype"),
        (np.zeros(2, [("a", "O")]), "pickles"),
    ],
)
def test_types_that_arrow_lacks_raise(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "x.npy", array, allow_pickle=True)
    with pytest.raises(windrow.SourceError, match=f"{tmp_path}/x.npy.*{message}"):
        windrow.read_numpy(tmp_path / "x.npy")


def test_arrays_that_do_not_match_raise(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(4))
    with pytest.raises(windrow.SourceError, match="4 rows of 'b' and 3 of 'a'"):
        windrow.read_numpy(tmp_path / "x.npz")
    np.save(tmp_path / "1.npy", np.zeros((3, 2)))
    np.save(tmp_path / "2.npy", np.zeros((3, 4)))
    with pytest.raises(windrow.SourceError, match=r"column 'data' is .*\[4\] in .*2\.npy but .*\[2\]"):
        windrow.read_numpy([tmp_path / "1.npy", tmp_path / "2.npy"])
    with pytest.raises(windrow.PlanError, match="column="):
        windrow.read_numpy(tmp_path / "1.npy", column="")


def saved(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_other_files_than_numpy_raise(tmp_path: Path) -> None:
    good = saved(np.arange(1000))
    packed = io.BytesIO()
    np.savez(packed, x=np.arange(1000))
    cases = {
        b"": "does not begin like one",
        b"PAR1" + bytes(99): "does not begin like one",
        good[:500]: "truncated",
        good.replace(b"(1000,)", b"(-10,) "): "claims the shape",
        good.replace(b"'descr'", b"'other'"): "cannot be parsed",
        good[:8] + b"\xff\xff" + good[10:]: "header that claims",
        packed.getvalue()[:-30]: "zip",
    }
    for content, message in cases.items():
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(windrow.SourceError, match=f"{tmp_path}/bad.*{message}"):
            windrow.read_numpy(tmp_path / "bad")


def test_error_names_the_corrupt_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(5000))
    ds = windrow.read_numpy(path)
    content = path.read_bytes()
    path.write_bytes(content[:3000] + bytes(40) + content[3040:])
    ds = windrow.read_numpy(path)
    with pytest.raises(CorruptBlockError, match=f"{path}, row group 0.*corrupt"):
        ds.take()


@examples(80)
@given(st.booleans(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_corruption_raises_or_is_harmless(
    tmp_path_factory: pytest.TempPathFactory, archive: bool, flips: list[tuple[float, int]]
) -> None:
    path = tmp_path_factory.mktemp("corruption") / "x"
    file = io.BytesIO()
    np.savez_compressed(file, x=np.arange(9), y=np.arange(9)) if archive else np.save(file, np.arange(9))
    content = bytearray(file.getvalue())
    for place, value in flips:
        content[int(place * (len(content) - 1))] = value
    path.write_bytes(content)
    raised: windrow.WindrowError | None = None
    try:
        windrow.read_numpy(path).take()
    except windrow.WindrowError as error:
        raised = error
    assert raised is None or str(path) in str(raised)


def test_planning_reads_headers_alone() -> None:
    store = CountingStore()
    for part in range(3):
        store.pipe_file(f"/d/{part}.npy", saved(np.arange(10**6, dtype=np.uint8) + part))
    ds = windrow.read_numpy("/d", filesystem=store)
    assert store.read_bytes == 3 * 2 * 16 * 1024
    assert (ds.count(), ds.num_blocks()) == (3 * 10**6, 3)


def test_only_selected_columns_are_requested(tmp_path: Path) -> None:
    bits = np.random.Generator(np.random.PCG64(0))
    file = io.BytesIO()
    columns: dict[str, Any] = {name: bits.random(10**5) for name in "abcd"}
    np.savez(file, **columns)
    store = CountingStore()
    store.pipe_file("/x.npz", file.getvalue())
    ds = windrow.read_numpy("/x.npz", filesystem=store, columns=["c"])
    store.forget()
    source = source_of(ds)
    (table,) = [source.reader.read(address) for address in source.addresses([0])]
    assert table.num_rows == 10**5
    assert store.read_bytes < 1.3 * 8 * 10**5


def test_order_equals_that_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_format, "PART_BYTES", 64)
    for part in range(3):
        np.save(tmp_path / f"{part}.npy", np.arange(part * 50, part * 50 + 50))
    (tmp_path / "parquet").mkdir()
    # blocks span files
    ds = windrow.read_numpy(f"{tmp_path}/*.npy", target_block_bytes=128)
    assert source_of(ds).blocks.rows.tolist()[:5] == [16, 16, 16, 10, 16]
    same_order_as_parquet(ds, tmp_path / "parquet")


def test_origins_and_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_format, "PART_BYTES", 32)
    for part in ("a", "b", "c"):
        (tmp_path / f"k={part}").mkdir()
        np.save(tmp_path / f"k={part}" / "x.npy", np.arange(6))
    ds = windrow.read_numpy(tmp_path, include_paths=True)
    numbered = ds.options(row_id_column="id")
    origins = numbered.row_lineage([row["id"] for row in numbered.take()])
    assert [tuple(origin) for origin in origins[4:8]] == [
        (f"{tmp_path}/k=a/x.npy", 1, 0),
        (f"{tmp_path}/k=a/x.npy", 1, 1),
        (f"{tmp_path}/k=b/x.npy", 0, 0),
        (f"{tmp_path}/k=b/x.npy", 0, 1),
    ]
    assert [row["path"] for row in ds.take()] == [origin.path for origin in origins]
    # the filter drops the file in the middle of a block
    ends = windrow.read_numpy(tmp_path, filter=pc.field("k") != "b")
    assert [row["k"] for row in ends.take()] == ["a"] * 6 + ["c"] * 6
    assert ends.count() == 12
    rows = windrow.read_numpy(tmp_path, filter=(pc.field("data") > 3) & (pc.field("k") == "c"), columns=["k"])
    assert (rows.count(), rows.take()) == (2, [{"k": "c"}] * 2)


def test_manifest_is_bound_to_its_options(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(5))
    ds = windrow.read_numpy(tmp_path / "x.npy")
    ds.save_manifest(tmp_path / "m")
    assert windrow.read_numpy(None, manifest=tmp_path / "m").take() == ds.take()
    with pytest.raises(
        windrow.PlanError, match="made with column='data', and the current options are column='x'"
    ):
        windrow.read_numpy(None, column="x", manifest=tmp_path / "m")


def test_replaced_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(10**6))
    source = source_of(windrow.read_numpy(path))
    parts = source.reader.parts(source.addresses([0])[0])
    next(parts)
    np.save(tmp_path / "y.npy", np.ones(10**6))
    (tmp_path / "y.npy").replace(path)
    with pytest.raises(windrow.SourceError, match="has changed since it was listed"):
        list(parts)


def test_date_outside_the_range_of_date32_raises(tmp_path: Path) -> None:
    np.save(tmp_path / "far.npy", np.array([0, 2**31], "M8[D]"))
    with pytest.raises(
        windrow.SourceError, match=r"far\.npy.*outside the range of date32: .*astype\('M8\[s\]'\)"
    ):
        windrow.read_numpy(tmp_path / "far.npy").take()
