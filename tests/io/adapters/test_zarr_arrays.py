"""read_zarr returns the rows that zarr returns, of stores of both versions, local and remote."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.drawn_arrays import TEXTS, draw_arrays, same_values
from tests.io.formats.stored import CountingStore, equal, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError
from windrow.io.adapters.zarr_store import ZarrStore, open_store
from windrow.io.catalog import listing
from windrow.io.storage.retries import Retries

zarr = pytest.importorskip("zarr")


def make_group(path: Path, version: int = 3) -> Any:
    return zarr.create_group(str(path), zarr_format=version)


def add(group: Any, name: str, **options: Any) -> Any:
    """Make an array; zarr warns of types that no specification has yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=zarr.errors.UnstableSpecificationWarning)
        return group.create_array(name, **options)


def upload(path: Path) -> CountingStore:
    store = CountingStore()
    for file in path.rglob("*"):
        if file.is_file():
            store.pipe_file(f"/bucket/{path.name}/{file.relative_to(path)}", file.read_bytes())
    return store


@st.composite
def stores(draw: st.DrawFn, path: Path, rows: int) -> Any:
    """A group of arrays with several chunks, shards and types, some of whose chunks are missing."""
    version = draw(st.sampled_from([2, 3]))
    group = make_group(path, version)
    for number in range(draw(st.integers(1, 3))):
        name = f"{'sub/' * draw(st.integers(0, 1))}a{number}"
        chunk = draw(st.integers(1, rows))
        options: dict[str, Any] = {"chunks": (chunk,)}
        if version == 3 and draw(st.booleans()):
            options["shards"] = (chunk * draw(st.integers(1, 3)),)
        kind = draw(st.sampled_from(["array", "array", "text", "fill"]))
        if kind == "text":
            made = add(group, name, shape=(rows,), dtype=str, **options)
            made[:] = np.array(draw(st.lists(TEXTS, min_size=rows, max_size=rows)), object)
        elif kind == "fill":
            made = add(group, name, shape=(rows,), dtype="f4", fill_value=7, **options)
            made[: rows // 2] = 1
        else:
            array = draw(draw_arrays(rows, ("S3", "U3", "M8[s]")).filter(lambda made: made.size > 0))
            shapes = {kind: (*shape, *array.shape[1:]) for kind, shape in options.items()}
            add(group, name, data=array, **shapes)
    return group


@examples(60)
@given(st.data(), st.integers(1, 20), st.integers(1, 600))
def test_rows_equal_those_of_zarr(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, rows: int, block_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("zarr") / "x"
    group = data.draw(stores(path, rows))
    stored = {name: item[:] for name, item in sorted(group.members(max_depth=None)) if hasattr(item, "shape")}
    ds = windrow.read_zarr(path, target_block_bytes=block_bytes)
    remote = windrow.read_zarr("/bucket/x", filesystem=upload(path), target_block_bytes=block_bytes)
    assert equal(read_blocks(ds), read_blocks(remote))
    assert ds.columns() == list(stored)
    assert ds.count() == rows
    _same_batch(ds, rows, stored)
    one = data.draw(st.sampled_from(list(stored)))
    _same_batch(windrow.read_zarr(path, columns=[one]), rows, {one: stored[one]})


def _same_batch(ds: windrow.Dataset, rows: int, stored: dict[str, Any]) -> None:
    batch = ds.take_batch(rows)
    assert list(batch) == list(stored)
    for name, array in stored.items():
        same_values(batch[name], array)


def make_numbers(path: Path, start: int = 0) -> None:
    group = make_group(path)
    rows = np.arange(start, start + 50)
    add(group, "x", data=rows, chunks=(7,))
    add(
        group,
        "image",
        data=np.repeat(rows, 12).reshape(50, 4, 3).astype(np.uint8),
        chunks=(2, 4, 2),
        shards=(28, 4, 4),
    )


@pytest.fixture
def numbers(tmp_path: Path) -> windrow.Dataset:
    """Rows 0 to 99 of two stores."""
    make_numbers(tmp_path / "a", 0)
    make_numbers(tmp_path / "b", 50)
    return windrow.read_zarr([tmp_path / "a", tmp_path / "b"], target_block_bytes=300)


def test_blocks_end_where_shards_end(numbers: windrow.Dataset) -> None:
    source = source_of(numbers)
    assert source.blocks.rows.tolist() == [28, 22] * 2
    assert source.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), (4, 3))
    assert source.blocks.bytes_exact


def test_order_equals_that_of_parquet(numbers: windrow.Dataset, tmp_path: Path) -> None:
    same_order_as_parquet(numbers, tmp_path)


def test_every_row_comes_once_also_when_resumed(numbers: windrow.Dataset, tmp_path: Path) -> None:
    def pipe(of: windrow.Dataset) -> windrow.DatasetPipeline:
        made = of.window(blocks_per_window=3).repeat(1).random_shuffle_each_window(seed=3)
        return made.options(executor="threads", progress=False)

    with pipe(numbers).iterator() as shard:
        batches = iter(shard.iter_batches(batch_size=9))
        taken = next(batches)["x"].tolist() + next(batches)["x"].tolist()
        state = shard.state_dict()
    again = pickle.loads(pickle.dumps(numbers))
    rest = [x for batch in pipe(again).iterator(state_dict=state).iter_batches() for x in batch["x"].tolist()]
    assert sorted(taken + rest) == list(range(100))
    assert taken + rest != list(range(100))
    # a chunk of another size
    zarr.open(str(tmp_path / "b"), mode="r+")["x"][:] = 0
    others = windrow.read_zarr([tmp_path / "a", tmp_path / "b"], target_block_bytes=300)
    with pytest.raises(windrow.StateError, match="content"):
        pipe(others).iterator(state_dict=state)


@pytest.mark.parametrize("version", [2, 3])
def test_types(tmp_path: Path, version: int) -> None:
    group = make_group(tmp_path / "x", version)
    table = np.array([(1, 2.5), (3, 4.5)], [("id", "i4"), ("at", "f8")])
    add(group, "table", data=table)
    add(group, "time", data=np.array(["2020-01-01", "NaT"], "M8[D]"))
    add(group, "text", data=np.array(["é", "b"]))
    add(group, "none", shape=(0,), dtype="i4", chunks=(2,))
    ds = windrow.read_zarr(
        tmp_path / "x", columns={"row": "table", "id": "table/id", "time": "time", "text": "/text"}
    )
    first, second = ds.take()
    assert first == {
        "row": {"id": 1, "at": 2.5},
        "id": 1,
        "time": np.datetime64("2020-01-01").item(),
        "text": "é",
    }
    assert second["time"] is None
    assert source_of(ds).null_counts == {"row": 0, "id": 0, "time": None, "text": 0}
    assert windrow.read_zarr(tmp_path / "x", columns={"n": "none"}).count() == 0
    zarr.save_array(str(tmp_path / "one"), np.arange(3), zarr_format=version)
    assert windrow.read_zarr(tmp_path / "one").take(1) == [{"data": 0}]
    assert windrow.read_zarr(tmp_path / "one", columns={"x": "/"}).take(1) == [{"x": 0}]


@pytest.mark.parametrize("version", [2, 3])
def test_dimension_names_choose_arrays(tmp_path: Path, version: int) -> None:
    group = make_group(tmp_path / "x", version)
    arrays = {"air": ("time", "lat"), "time": ("time",), "lat": ("lat",)}
    for name, dimensions in arrays.items():
        named = (
            {"dimension_names": dimensions}
            if version == 3
            else {"attributes": {"_ARRAY_DIMENSIONS": dimensions}}
        )
        # equal lengths do not make the latitude of a row
        add(group, name, data=np.zeros((4,) * len(dimensions)), **named)
    with pytest.raises(
        windrow.SourceError, match=r"first dimensions are 'time' and 'lat'|are 'lat' and 'time'"
    ):
        windrow.read_zarr(tmp_path / "x")
    assert windrow.read_zarr(tmp_path / "x", dimension="time").columns() == ["air", "time"]
    assert windrow.read_zarr(tmp_path / "x", dimension="lat").columns() == ["lat"]
    with pytest.raises(
        windrow.PlanError, match=r"dimension='lon': it is the first one of no array.*'air' \(4, 4\)"
    ):
        windrow.read_zarr(tmp_path / "x", dimension="lon")
    with pytest.raises(windrow.PlanError, match="not be given with a dict"):
        windrow.read_zarr(tmp_path / "x", columns={"x": "lat"}, dimension="lat")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, r"3 rows in the array 'a' and 4 in 'b': choose .* from 'a' \(3,\) int64, 'b' \(4,\) float64"),
        ({"x": "nowhere"}, r"no array 'nowhere'; it has 'a' \(3,\) int64"),
        (
            {"x": "one"},
            "no rows in the array 'one', which is a single value: leave it out with a dict of columns=",
        ),
        ({"x": "complex"}, r"array 'complex' that is of complex128.*save \.real"),
    ],
)
def test_what_cannot_be_read_raises(tmp_path: Path, columns: Any, message: str) -> None:
    group = make_group(tmp_path / "x")
    add(group, "a", data=np.arange(3))
    add(group, "b", data=np.zeros(4))
    if columns is not None:
        add(group, "one", shape=(), dtype="f4")
        add(group, "complex", data=np.zeros(3, "c16"))
    with pytest.raises(windrow.SourceError, match=f"{tmp_path}/x .*{message}"):
        windrow.read_zarr(tmp_path / "x", columns=columns)


@pytest.mark.parametrize("version", [2, 3])
def test_fields_of_structured_arrays_are_columns(tmp_path: Path, version: int) -> None:
    values = np.array([(1, 0.5), (2, 1.5), (3, 2.5)], [("x", "i4"), ("y", "f2")])
    add(make_group(tmp_path / "x", version), "table", data=values, chunks=(2,))
    ds = windrow.read_zarr(tmp_path / "x")
    assert ds.columns() == ["table/x", "table/y"]
    assert ds.to_arrow().to_pydict() == {"table/x": [1, 2, 3], "table/y": [0.5, 1.5, 2.5]}
    assert windrow.read_zarr(tmp_path / "x", columns=["table/y"]).take(1) == [{"table/y": 0.5}]
    chosen = windrow.read_zarr(tmp_path / "x", columns={"row": "table", "x": "table/x"})
    assert chosen.take(1) == [{"row": {"x": 1, "y": 0.5}, "x": 1}]


def test_what_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(windrow.SourceError, match=f"{tmp_path}/no: there is no such folder"):
        windrow.read_zarr(tmp_path / "no")
    (tmp_path / "folder").mkdir()
    with pytest.raises(windrow.SourceError, match=f"{tmp_path}/folder is not a Zarr store"):
        windrow.read_zarr(tmp_path / "folder")
    with pytest.raises(windrow.SourceError, match="/bucket/no is not a Zarr store"):
        windrow.read_zarr("/bucket/no", filesystem=CountingStore())
    add(make_group(tmp_path / "x"), "a", data=np.arange(3))
    with pytest.raises(windrow.PlanError, match="no column 'b'"):
        windrow.read_zarr(tmp_path / "x", columns=["b"])
    add(make_group(tmp_path / "y"), "a", data=np.zeros(3))
    with pytest.raises(
        windrow.SourceError, match=r"/y has other columns than .*/x: 'a' double where .* 'a' int64"
    ):
        windrow.read_zarr([tmp_path / "x", tmp_path / "y"])


def test_changed_and_corrupt_stores_raise(tmp_path: Path) -> None:
    add(make_group(tmp_path / "x"), "a", data=np.arange(2000), chunks=(2000,))
    ds = windrow.read_zarr(tmp_path / "x")
    (chunk,) = (tmp_path / "x" / "a" / "c").iterdir()
    content = chunk.read_bytes()
    chunk.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptBlockError, match=f"{tmp_path}/x, rows 0-1999: cannot be decoded"):
        ds.take()
    shutil.rmtree(tmp_path / "x")
    add(make_group(tmp_path / "x"), "a", data=np.arange(10), chunks=(5,))
    moved = pickle.loads(pickle.dumps(windrow.read_zarr(tmp_path / "x")))
    assert moved.count() == 10
    from windrow.io.adapters import zarr_arrays, zarr_store

    # as another process would
    zarr_store.open_store.cache_clear()
    zarr_arrays._open_arrays.cache_clear()
    with pytest.raises(windrow.SourceError, match="the store has changed since it was read"):
        ds.take()


def test_zip_files_and_filesystems_of_pyarrow(tmp_path: Path) -> None:
    make_numbers(tmp_path / "x")
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "x")
    local = windrow.read_zarr(tmp_path / "x")
    assert equal(read_blocks(windrow.read_zarr(tmp_path / "x.zip")), read_blocks(local))
    subtree = pa_fs.SubTreeFileSystem(str(tmp_path), pa_fs.LocalFileSystem())
    assert equal(read_blocks(windrow.read_zarr("x", filesystem=subtree)), read_blocks(local))
    shutil.rmtree(tmp_path / "x")
    make_numbers(tmp_path / "x", 1)
    assert source_of(local).contents != source_of(windrow.read_zarr(tmp_path / "x")).contents


def test_only_selected_arrays_are_requested(tmp_path: Path) -> None:
    group = make_group(tmp_path / "x")
    for name in "abcd":
        add(group, name, data=np.random.Generator(np.random.PCG64(0)).random(10**4), chunks=(1000,))
    store = upload(tmp_path / "x")
    ds = windrow.read_zarr("/bucket/x", filesystem=store, columns=["c"])
    assert store.read_bytes < 10**4
    store.forget()
    assert len(read_blocks(ds)) == 10**4
    # `read_blocks` reads each block twice
    assert store.read_bytes < 2 * 8 * 10**4 * 1.1


def test_storage_that_does_not_respond_is_reported_after_the_time_of_a_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent(CountingStore):
        def info(self, path: str, **options: Any) -> dict[str, Any]:
            raise ConnectionError("refused")

        def cat_file(self, *_: Any, **__: Any) -> bytes:
            raise ConnectionError("refused")

    monkeypatch.setattr(listing, "_CONTACT_SECONDS", 0.1)
    with pytest.raises(windrow.SourceError, match=r"/bucket/x cannot be listed: .*retry budget of 0.1 s"):
        windrow.read_zarr("/bucket/x", filesystem=Silent(), retry_seconds=2)


def test_failed_requests_are_retried(tmp_path: Path) -> None:
    add(make_group(tmp_path / "x"), "a", data=np.arange(1000), chunks=(100,))
    store = upload(tmp_path / "x")
    store.failures = 1
    ds = windrow.read_zarr("/bucket/x", filesystem=store)
    store.failures = 1
    assert len(ds.take(1000)) == 1000
    impatient = windrow.read_zarr("/bucket/x", filesystem=store, retry_seconds=0)
    store.failures = 10**6
    with pytest.raises(
        windrow.SourceError, match=r"(?s)rows 0-999: cannot be read.*the connection was lost.*retry_seconds="
    ) as caught:
        impatient.take()
    assert not isinstance(caught.value, CorruptBlockError)


def test_errors_are_retried_and_no_missing_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_group(tmp_path / "a")
    store = upload(tmp_path / "a")
    where = ZarrStore("/bucket/a", store, Retries(seconds=5, first_wait_seconds=0.001))
    known = open_store(where).store
    failures: list[Exception] = [TimeoutError("slow"), ConnectionResetError("reset")]

    def fail(self: CountingStore, path: str, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return info(self, path, **options)

    info = CountingStore.info
    monkeypatch.setattr(CountingStore, "info", fail)
    assert asyncio.run(known.exists("zarr.json"))
    assert not failures
    assert not asyncio.run(known.exists("none"))
    failures.append(PermissionError("denied"))
    with pytest.raises(PermissionError):
        asyncio.run(known.exists("zarr.json"))
