"""read_hdf5 returns the datasets that h5py stores, with rows as the first axis."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.drawn_arrays import TEXTS, draw_arrays, same_values
from tests.io.formats.stored import CountingStore, equal, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError
from windrow.io.formats import hdf5_format

h5py = pytest.importorskip("h5py")

_STORAGE: list[dict[str, Any]] = [{}, {"compression": "gzip"}, {"compression": "lzf", "shuffle": True}]


@st.composite
def files(draw: st.DrawFn, rows: int) -> tuple[bytes, dict[str, Any]]:
    """A file of datasets of several layouts, and what h5py reads of each."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for number in range(draw(st.integers(1, 3))):
            path = f"{'group/' * draw(st.integers(0, 2))}a{number}"
            match draw(st.sampled_from(["array", "array", "text", "list", "fill"])):
                case "array":
                    array = draw(draw_arrays(rows, ("S3",)))
                    storage = draw(st.sampled_from(_STORAGE)) if array.size else {}
                    chunks = (draw(st.integers(1, rows)), *array.shape[1:]) if array.size else None
                    file.create_dataset(path, data=array, chunks=chunks, **storage)
                case "text":
                    texts = draw(st.lists(TEXTS, min_size=rows, max_size=rows))
                    file.create_dataset(path, data=texts, dtype=h5py.string_dtype())
                case "list":
                    made = file.create_dataset(path, (rows,), h5py.vlen_dtype(np.dtype("i4")))
                    for row in range(rows):
                        made[row] = np.arange(draw(st.integers(0, 3)), dtype="i4")
                case "fill":
                    chunk = draw(st.integers(1, max(rows, 1)))
                    made = file.create_dataset(path, (rows, 2), "f4", chunks=(chunk, 2), fillvalue=7)
                    made[: rows // 2] = 1
    with h5py.File(content, "r") as file:
        found: dict[str, Any] = {}
        file.visititems(lambda path, item: found.update({path: item}) if hasattr(item, "dtype") else None)
        read = {path: (item.asstr() if _is_utf8(item) else item)[()] for path, item in found.items()}
    return content.getvalue(), read


def _is_utf8(dataset: Any) -> bool:
    text = h5py.check_string_dtype(dataset.dtype)
    return text is not None and text.encoding == "utf-8"


@examples(60)
@given(st.data(), st.integers(1, 20), st.integers(1, 200), st.integers(1, 600))
def test_rows_equal_those_of_h5py(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    rows: int,
    part_bytes: int,
    block_bytes: int,
) -> None:
    content, stored = data.draw(files(rows))
    folder = tmp_path_factory.mktemp("hdf5")
    (folder / "x.h5").write_bytes(content)
    store = CountingStore()
    store.pipe_file("/x.h5", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5_format, "PART_BYTES", part_bytes)
        ds = windrow.read_hdf5(folder / "x.h5", target_block_bytes=block_bytes)
        remote = windrow.read_hdf5("/x.h5", filesystem=store, target_block_bytes=block_bytes)
        assert equal(read_blocks(ds), read_blocks(remote))
        assert ds.columns() == list(stored)
        assert ds.count() == rows
        batch = ds.take_batch(rows)
        for name, array in stored.items():
            same_values(batch[name], array)
        one = data.draw(st.sampled_from(list(stored)))
        same_values(windrow.read_hdf5(folder / "x.h5", columns=[one]).take_batch(rows)[one], stored[one])


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[windrow.Dataset]:
    """Rows 0 to 99 in two files, in chunks of 7 and 3 rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5_format, "PART_BYTES", 64)
        for part in range(2):
            with h5py.File(tmp_path / f"{part}.h5", "w") as file:
                rows = np.arange(part * 60, (60, 100)[part])
                file.create_dataset("x", data=rows, chunks=(7,), compression="gzip")
                file.create_dataset("pair", data=np.stack([rows, -rows], 1), chunks=(3, 2))
        yield windrow.read_hdf5(tmp_path, target_block_bytes=500)


def test_order_equals_that_of_parquet(numbers: windrow.Dataset, tmp_path: Path) -> None:
    (tmp_path / "parquet").mkdir()
    same_order_as_parquet(numbers, tmp_path / "parquet")


def test_every_row_comes_once_also_when_resumed(numbers: windrow.Dataset) -> None:
    pipe = numbers.window(blocks_per_window=2).repeat(1).random_shuffle_each_window(seed=3)
    pipe = pipe.options(executor="threads", progress=False)
    with pipe.iterator() as shard:
        batches = iter(shard.iter_batches(batch_size=9))
        taken = next(batches)["x"].tolist() + next(batches)["x"].tolist()
        state = shard.state_dict()
    rest = [x for batch in pipe.iterator(state_dict=state).iter_batches() for x in batch["x"].tolist()]
    assert sorted(taken + rest) == list(range(100))
    assert taken + rest != list(range(100))


def test_blocks_end_where_chunks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_format, "PART_BYTES", 500)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a", data=np.arange(200), chunks=(6,), compression="gzip")
        file.create_dataset("b", data=np.arange(200), chunks=(10,), compression="gzip")
        file["plain"] = np.arange(200)
    rows = source_of(windrow.read_hdf5(tmp_path / "x.h5")).blocks.rows.tolist()
    assert rows == [30] * 6 + [20]


def test_types(tmp_path: Path) -> None:
    table = np.zeros(2, [("id", "i4"), ("at", "f4", (2,)), ("inner", [("s", "S2")])])
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["table"] = table
        file["utf8"] = np.array(["é".encode(), b""], h5py.string_dtype("utf-8", 4))
        file["ascii"] = np.array([b"ab", b"c"])
        file["flag"] = np.array([True, False])
        file["kind"] = np.array([1, 0], h5py.enum_dtype({"NO": 0, "YES": 1}, "i2"))
        file["time"] = np.array(["2020-01-01", "NaT"], "M8[s]").astype(h5py.opaque_dtype("M8[s]"))
        file["image"] = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
        file.create_dataset("inside", (2,), np.dtype(("f4", (3,))))
        file["alias"] = h5py.SoftLink("/kind")
    source = source_of(windrow.read_hdf5(tmp_path / "x.h5"))
    assert dict(zip(source.schema.names, source.schema.types, strict=True)) == {
        "ascii": pa.binary(),
        "flag": pa.bool_(),
        "image": pa.fixed_shape_tensor(pa.uint8(), (4, 3)),
        "inside": pa.list_(pa.float32(), 3),
        "kind": pa.int16(),
        "table/id": pa.int32(),
        "table/at": pa.list_(pa.float32(), 2),
        "table/inner": pa.struct([("s", pa.binary())]),
        "time": pa.timestamp("s"),
        "utf8": pa.string(),
    }
    image = windrow.read_hdf5(tmp_path / "x.h5").take_batch()["image"]
    np.testing.assert_array_equal(image, np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    assert source.blocks.rows_known
    assert source.null_counts["time"] is None
    assert source.null_counts["kind"] == 0
    chosen = {"row": "/table", "id": "table/id", "again": "alias", "utf8": "utf8", "time": "time"}
    assert windrow.read_hdf5(tmp_path / "x.h5", columns=chosen).take() == [
        {
            "row": {"id": 0, "at": [0.0, 0.0], "inner": {"s": b""}},
            "id": 0,
            "again": again,
            "utf8": text,
            "time": time,
        }
        for again, text, time in ((1, "é", np.datetime64("2020-01-01", "s").item()), (0, "", None))
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            None,
            r"3 rows in the dataset 'a' and 4 in 'b': choose .* from 'a' \(3,\) int64, 'b' \(4,\) float64$",
        ),
        ({"x": "nowhere/x"}, r"no dataset 'nowhere/x'; it has 'a' \(3,\) int64, 'b' \(4,\).*\) \w+$"),
        ({"x": "one"}, "'one', which is a single value: leave it out with a dict of columns=$"),
        ({"x": "none"}, "no rows in the dataset 'none', which is empty"),
        ({"x": "complex"}, r"dataset 'complex' that is of complex128.*save \.real"),
        ({"x": "references"}, "dataset 'references' that holds references"),
        ({"x": "there"}, r"external link 'there' to 'other.h5'"),
        ({"x": "virtual"}, "'virtual' whose values are in other files"),
        ({"x": "lists"}, "holds lists of other values than numbers"),
    ],
)
def test_what_cannot_be_read_raises(tmp_path: Path, columns: Any, message: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"], file["b"] = np.arange(3), np.zeros(4)
        if columns is not None:
            file["one"], file["none"], file["complex"] = 5, h5py.Empty("f4"), np.zeros(3, "c16")
            file.create_dataset("references", data=np.array([file["a"].ref] * 3, h5py.ref_dtype))
            file["there"] = h5py.ExternalLink("other.h5", "/x")
            layout = h5py.VirtualLayout((3,), "i8")
            layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
            file.create_virtual_dataset("virtual", layout)
            file.create_dataset("lists", (3,), h5py.vlen_dtype(h5py.string_dtype()))
    with pytest.raises(windrow.SourceError, match=f"{tmp_path}/x.h5 .*{message}"):
        windrow.read_hdf5(tmp_path / "x.h5", columns=columns)


def test_bad_arguments(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(3)
        file["none"] = np.zeros(0)
    for columns in ({}, {"x": ""}, {1: "a"}):
        with pytest.raises(windrow.PlanError, match="must map at least one column name"):
            windrow.read_hdf5(tmp_path / "x.h5", columns=columns)  # type: ignore[arg-type]
    only = windrow.read_hdf5(tmp_path / "x.h5", columns={"a": "a"})
    with pytest.raises(windrow.PlanError, match="no column 'b'"):
        only.select_columns(["b"])
    assert windrow.read_hdf5(tmp_path / "x.h5", columns={"a": "none"}).count() == 0
    ds = windrow.read_hdf5(
        tmp_path / "x.h5", columns={"a": "a"}, filter=pc.field("a") > 0, include_paths=True
    )
    assert ds.take() == [{"a": 1}, {"a": 2}]


def test_other_files_and_corrupt_ones_raise(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    for content in (b"", b"PAR1" + bytes(4000)):
        path.write_bytes(content)
        with pytest.raises(windrow.SourceError, match=f"{path} is not an HDF5 file"):
            windrow.read_hdf5(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(5000), chunks=(5000,), compression="gzip", fletcher32=True)
    content = path.read_bytes()
    path.write_bytes(content[:-2000])
    with pytest.raises(windrow.SourceError, match=f"{path} is truncated or corrupt.*truncated file"):
        windrow.read_hdf5(path)
    path.write_bytes(content[:-2000] + bytes(40) + content[-1960:])
    ds = windrow.read_hdf5(path)
    with pytest.raises(CorruptBlockError, match=f"{path}, row group 0.*corrupt"):
        ds.take()


def test_replaced_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    for name, value in ((path, 0), (tmp_path / "y", 1)):
        with h5py.File(name, "w") as file:
            file["x"] = np.full(10, value)
    ds = windrow.read_hdf5(path)
    (tmp_path / "y").replace(path)
    with pytest.raises(windrow.SourceError, match=f"{path}.*has changed since it was listed"):
        ds.take()


def test_remote_files_are_read_by_metadata_and_chunk(tmp_path: Path) -> None:
    bits = np.random.Generator(np.random.PCG64(0))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in "abcd":
            file.create_dataset(name, data=bits.random(10**5), chunks=(10**4,))
    store = CountingStore()
    store.pipe_file("/x.h5", (tmp_path / "x.h5").read_bytes())
    ds = windrow.read_hdf5("/x.h5", filesystem=store, columns=["c"])
    assert store.read_bytes < 500_000
    store.forget()
    source = source_of(ds)
    (table,) = [source.reader.read(address) for address in source.addresses([0])]
    assert table.num_rows == 10**5
    assert store.read_bytes < 1.5 * 8 * 10**5
    # the chunks by one request
    assert store.reads < 8


def test_failed_requests_are_retried(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(10**5), chunks=(10**4,))
    store = CountingStore()
    store.pipe_file("/x.h5", (tmp_path / "x.h5").read_bytes())
    ds = windrow.read_hdf5("/x.h5", filesystem=store)
    store.failures = 1
    assert len(ds.take(10**5)) == 10**5
    impatient = windrow.read_hdf5("/x.h5", filesystem=store, retry_seconds=0)
    store.failures = 10**6
    with pytest.raises(
        windrow.SourceError, match=r"(?s)x.h5.*cannot be read.*the connection was lost"
    ) as caught:
        impatient.take()
    assert not isinstance(caught.value, CorruptBlockError)


def test_files_become_partitions_and_manifests(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / f"k={part}").mkdir()
        with h5py.File(tmp_path / f"k={part}" / "x.h5", "w") as file:
            file["x"] = np.arange(3)
    ds = windrow.read_hdf5(tmp_path, columns={"x": "/x"})
    assert windrow.read_hdf5(tmp_path).take()[-1] == {"x": 2, "k": "b"}
    ds.save_manifest(tmp_path / "m")
    assert windrow.read_hdf5(None, columns={"x": "x"}, manifest=tmp_path / "m").count() == 6
    with pytest.raises(windrow.PlanError, match="made with columns="):
        windrow.read_hdf5(None, manifest=tmp_path / "m")
