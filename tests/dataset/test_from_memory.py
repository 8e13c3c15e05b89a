"""The ``from_*`` sources: how each converts its input, and which input raises an error."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import windrow
from windrow import PlanError, SourceError, TransformError


def test_range() -> None:
    ds = windrow.range(10, block_rows=4)
    assert ds.to_numpy()["id"].tolist() == list(range(10))
    assert ds.num_blocks() == 3
    assert ds.size_bytes() == 80
    assert windrow.range(0).count() == 0
    for bad in (-1, 1.5, True, "3"):
        with pytest.raises(PlanError, match="integer of 0 or more"):
            windrow.range(bad)  # type: ignore[arg-type]
    for rows, block_rows, text in ((2**70, 2**20, "2\\^62"), (2**62, 1, "make blocks larger")):
        with pytest.raises(PlanError, match=text):
            windrow.range(rows, block_rows=block_rows)


def test_items_of_arrays_are_tensors_where_shapes_are_equal() -> None:
    ds = windrow.from_items([{"x": np.full(2, i, np.float32), "y": np.zeros(i)} for i in range(3)])
    batch = ds.take_batch()
    assert batch["x"].shape == (3, 2)
    assert [len(row) for row in batch["y"]] == [0, 1, 2]


def test_error_names_the_wrong_item() -> None:
    with pytest.raises(PlanError, match="NoneType is not iterable"):
        windrow.from_items(None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="1 of 2 items are dicts"):
        windrow.from_items([{"x": 1}, 2])
    with pytest.raises(PlanError, match="no items"):
        windrow.from_items([])
    with pytest.raises(PlanError, match="column 'x' cannot be held"):
        windrow.from_items([{"x": object()}])
    with pytest.raises(PlanError, match="a column is named 3"):
        windrow.from_items([{3: 1}])


def test_source_arrays_are_not_copied_but_delivered_batches_are() -> None:
    array = np.arange(1000)
    ds = windrow.from_numpy(array)
    (address,) = ds._plan.source.addresses([0])
    held = ds._plan.source.reader.read(address)["data"].chunk(0)
    assert held.buffers()[1].address == array.ctypes.data
    for batch in (*ds.iter_batches(batch_size=100), ds.take_batch(), ds.to_numpy()):
        batch["data"][:] = -1
    for tensors in ds.iter_torch_batches(batch_size=100):
        tensors["data"][:] = -1
    assert (array == np.arange(1000)).all()


def test_numpy_of_every_kind() -> None:
    columns = {
        "image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "flipped": np.arange(12, dtype=np.float16).reshape(6, 2).T,
        "big": np.array([1, 2], ">i4"),
        "text": np.array(["a", "bc"]),
        "when": np.array(["2020-01-01", "NaT"], "datetime64[us]"),
        "flag": np.array([True, False]),
    }
    back = windrow.from_numpy(columns).to_numpy()
    for name, array in columns.items():
        assert back[name].shape == array.shape
        assert back[name].tolist() == array.tolist()
    joined = windrow.from_numpy([np.zeros((2, 3)), np.ones((1, 3))]).to_numpy()["data"]
    assert joined[:, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": np.zeros(2), "y": np.zeros(3)}, "'x' has 2, 'y' has 3"),
        (np.float64(3), "single value"),
        ({"x": np.zeros(2, np.complex128)}, "column 'x' cannot be held"),
        ({}, "no columns"),
        ([], "nothing to read"),
        ((np.zeros(2), np.ones(2)), r"a tuple of arrays could mean columns or rows; give a dict for columns"),
        ((np.zeros(2),), "or a list of arrays to concatenate"),
        ([(np.zeros(2), np.ones(2))], "a tuple of arrays could mean columns or rows"),
    ],
)
def test_error_names_the_wrong_array(arrays: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        windrow.from_numpy(arrays)


def test_pandas_types_and_index() -> None:
    frame = pd.DataFrame(
        {
            "nan": [1.0, np.nan],
            "whole": pd.array([1, None], "Int64"),
            "text": ["a", None],
            "kind": pd.Categorical(["u", "v"]),
            "when": pd.to_datetime(["2020-01-01", None]).tz_localize("UTC"),
            "matrix": [np.zeros((2, 2)), np.ones((2, 2))],
        },
        index=pd.Index([7, 8], name="key"),
    )
    ds = windrow.from_pandas(frame)
    assert ds.columns()[0] == "key"
    nulls = ds._plan.source.null_counts
    assert {name: nulls[name] for name in ("nan", "whole", "text", "when")} == {
        "nan": 0,
        "whole": 1,
        "text": 1,
        "when": 1,
    }
    row = ds.take()[1]
    assert row["key"] == 8
    assert row["when"] is None
    assert ds.take()[0]["when"] == datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    assert ds.take_batch()["matrix"].shape == (2, 2, 2)
    assert ds.to_pandas()["whole"].tolist() == [1, pd.NA]
    shuffled_index = pd.DataFrame({"x": [1, 2]}, index=[1, 0])
    assert windrow.from_pandas(shuffled_index).columns() == ["index", "x"]


def test_error_names_the_wrong_frame() -> None:
    with pytest.raises(PlanError, match="column 'x' cannot be held"):
        windrow.from_pandas(pd.DataFrame({"x": [1, "a"]}))
    with pytest.raises(PlanError, match="several columns are named 'x'"):
        windrow.from_pandas(pd.DataFrame([[1, 2]], columns=["x", "x"]))
    with pytest.raises(PlanError, match="dict is not a pandas DataFrame"):
        windrow.from_pandas({"x": [1]})


def test_arrow_in_every_form() -> None:
    table = pa.table({"x": range(6)})
    batch, reader = table.to_batches()[0], table.to_reader()
    for form in (table, batch, reader, [table.slice(0, 2), batch.slice(2)]):
        assert windrow.from_arrow(form).to_arrow().equals(table)
    with pytest.raises(PlanError, match="int is not a Table"):
        windrow.from_arrow([1])


def test_torch_in_every_form() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.float32, requires_grad=True)
    assert windrow.from_torch(x).to_numpy()["item"].tolist() == [0, 1, 2, 3, 4, 5]

    class Pairs(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return torch.full((2, 2), i), i, list(range(i))

    rows = windrow.from_torch(Pairs(), target_block_bytes=60)
    assert rows.num_blocks() == 4
    found = rows.to_numpy()
    assert found["item_0"].shape == (4, 2, 2)
    assert found["item_1"].tolist() == [0, 1, 2, 3]
    assert [len(row) for row in found["item_2"]] == [0, 1, 2, 3]
    with pytest.raises(PlanError, match="BFloat16"):
        windrow.from_torch(torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(PlanError, match="from_generator"):
        windrow.from_torch(iter([1]))


def test_error_names_the_items_that_do_not_fit() -> None:
    class Odd:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, i: int) -> Any:
            if i == 17:
                raise ValueError("no such sample")
            return {"x": np.zeros(3 if i == 5 else 2)}

    ds = windrow.from_torch(Odd(), target_block_bytes=64)
    with pytest.raises(SourceError, match="items 3-6: column 'x'"):
        list(ds.iter_rows())
    with pytest.raises(SourceError, match="item 17: ValueError: no such sample"):
        ds._plan.source.reader.read(ds._plan.source.addresses([4])[0])


def _count(n: int) -> Iterator[dict[str, Any]]:
    yield from ({"x": i, "text": "t" * (i % 5)} for i in range(n))


def test_generator_runs_once_and_is_cut_into_blocks(tmp_path: Path) -> None:
    calls = []

    def rows() -> Iterator[dict[str, Any]]:
        calls.append(1)
        yield from _count(3000)

    ds = windrow.from_generator(rows, cache_dir=tmp_path, target_block_bytes=5_000)
    pipe = ds.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=1)
    for epoch in pipe.options(executor="threads", progress=False).iter_epochs():
        assert sorted(row["x"] for row in epoch.iter_rows()) == list(range(3000))
    assert calls == [1]
    sizes = ds._plan.source.blocks.decoded_bytes
    assert len(sizes) > 5
    assert sizes[:-1].max() < 8_000


def test_generator_batches_do_not_change_blocks_of_fixed_width(tmp_path: Path) -> None:
    def batches(size: int) -> Iterator[dict[str, Any]]:
        for start in range(0, 1000, size):
            yield {"x": np.arange(start, min(1000, start + size))}

    cuts = [
        windrow.from_generator(
            functools.partial(batches, size), batched=True, cache_dir=tmp_path, target_block_bytes=640
        )
        for size in (1, 7, 333, 1000)
    ]
    rows = [ds._plan.source.blocks.rows.tolist() for ds in cuts]
    assert rows == [[80] * 12 + [40]] * 4
    assert len({ds._plan.source.contents for ds in cuts}) == 1


@pytest.mark.parametrize("stated", [9, 11])
def test_generator_rows_are_checked(stated: int, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"yielded (at least )?10 rows, but rows={stated}:"):
        windrow.from_generator(lambda: _count(10), rows=stated, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_generator_schema_and_errors(tmp_path: Path) -> None:
    schema = pa.schema({"x": pa.float32(), "text": pa.string()})
    ds = windrow.from_generator(lambda: _count(3), schema=schema, cache_dir=tmp_path)
    assert ds.schema() == schema
    assert windrow.from_generator(lambda: iter(()), schema=schema, cache_dir=tmp_path).count() == 0
    with pytest.raises(SourceError, match="pass schema="):
        windrow.from_generator(lambda: iter(()), cache_dir=tmp_path)
    with pytest.raises(PlanError, match="cannot be called"):
        windrow.from_generator(_count(3))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"must be a pyarrow\.Schema"):
        windrow.from_generator(lambda: _count(3), schema={"x": "wrong"})
    taken = windrow.from_generator(
        lambda: _count(3), schema={"x": pa.int8(), "y": pa.int8(), "text": pa.string()}, cache_dir=tmp_path
    )
    assert taken.take()[0] == {"x": 0, "y": None, "text": ""}
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"cache_dir='.*file'"):
        windrow.from_generator(lambda: _count(3), cache_dir=tmp_path / "file")

    def broken() -> Iterator[dict[str, int]]:
        yield {"x": 1}
        raise KeyError("lost")

    with pytest.raises(TransformError, match=r"broken.*KeyError: 'lost'"):
        windrow.from_generator(broken, cache_dir=tmp_path)
    with pytest.raises(SourceError, match="rows 1024-1029: column 'x' is string and not int64"):
        windrow.from_generator(
            lambda: ({"x": i if i < 1024 else "a"} for i in range(1030)), cache_dir=tmp_path
        )


@pytest.mark.parametrize("rows", [1023, 1024, 1025])
def test_key_missing_in_later_rows_is_null(rows: int, tmp_path: Path) -> None:
    items = [*({"a": i, "b": i} for i in range(rows)), {"a": -1}]
    ds = windrow.from_generator(lambda: iter(items), cache_dir=tmp_path)
    assert ds.to_arrow().to_pylist() == windrow.from_items(items).to_arrow().to_pylist()
    items.append({"a": 0, "c": 0})
    if rows >= 1024:
        with pytest.raises(SourceError, match="leave others out"):
            windrow.from_generator(lambda: iter(items), cache_dir=tmp_path)


def test_missing_staged_rows_are_reported(tmp_path: Path) -> None:
    ds = windrow.from_generator(lambda: _count(10), cache_dir=tmp_path)
    (file,) = tmp_path.rglob("*.arrow")
    file.unlink()
    with pytest.raises(SourceError, match="cache_dir= that all of them see"):
        ds.take()


def test_polars_types_and_failing_query() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"x": [1, None], "kind": ["a", "b"], "vector": [[1.0], [2.0, 3.0]]}).with_columns(
        pl.col("kind").cast(pl.Categorical)
    )
    assert windrow.from_polars([frame, frame]).take()[3] == {"x": None, "kind": "b", "vector": [2.0, 3.0]}
    with pytest.raises(SourceError, match="query failed"):
        windrow.from_polars(frame.lazy().select(pl.col("kind").cast(pl.String).str.to_integer()))
    with pytest.raises(PlanError, match="int is not a polars"):
        windrow.from_polars(3)


def test_huggingface_datasets_without_a_fixed_order_are_rejected() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [1, 2]})
    with pytest.raises(PlanError, match=r"hf://datasets/owner/name.*from_generator"):
        windrow.from_huggingface(rows.to_iterable_dataset())
    with pytest.raises(PlanError, match=r"splits \('train'\)"):
        windrow.from_huggingface(datasets.DatasetDict(train=rows))


def test_huggingface_tensors(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"a": datasets.Array2D((2, 3), "float32"), "l": datasets.ClassLabel(names=["u"])}
    )
    images = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    rows = datasets.Dataset.from_dict({"a": list(images), "l": [0] * 4}, features=features)
    found = windrow.from_huggingface(rows.with_format("torch")).to_numpy()
    assert (found["a"] == images).all()
    assert found["l"].tolist() == [0] * 4


def test_error_names_the_dask_partition_with_another_type() -> None:
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_map(
        lambda i: pd.DataFrame({"x": [i] if i < 2 else ["a"]}), [0, 1, 2], meta={"x": "int64"}
    )
    ds = windrow.from_dask(frame)
    assert ds.num_blocks() == 3
    with pytest.raises(SourceError, match="partition 2: column 'x'"):
        list(ds.iter_rows())
    with pytest.raises(PlanError, match="each of 3 partitions"):
        windrow.from_dask(frame, rows=[1])
    with pytest.raises(PlanError, match="DataFrame is not a dask DataFrame"):
        windrow.from_dask(pd.DataFrame({"x": [1]}))


@pytest.mark.parametrize(
    ("call", "module", "extra"),
    [
        (lambda: windrow.from_polars(3), "polars", "polars"),
        (lambda: windrow.from_dask(3), "dask.dataframe", "dask"),
        (lambda: windrow.from_huggingface(3), "datasets", "huggingface"),
        (lambda: windrow.range(3).to_tf(), "tensorflow", "tensorflow"),
        (lambda: windrow.range(3).to_dask(), "dask.dataframe", "dask"),
        (lambda: windrow.range(3).to_pandas(), "pandas", "pandas"),
        (lambda: windrow.range(3).iter_batches(batch_format="pandas"), "pandas", "pandas"),
        (lambda: windrow.range(3).repeat(1).options(executor="ray").iterator(), "ray", "ray"),
        (lambda: windrow.range(3).to_huggingface(), "datasets", "huggingface"),
    ],
)
def test_error_names_the_missing_extra(
    call: Any, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(PlanError, match=rf'pip install "windrow\[{extra}\]"'):
        call()


def test_from_arrow_rejects_offsets_and_indices_out_of_bounds() -> None:
    offsets = np.zeros(4, np.int32)
    text = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array([1, 2, 3]))
    # like a mapped file that changes while Arrow uses it
    offsets[:] = [0, 2**30, 1, 3]
    with pytest.raises(SourceError, match=r"from_arrow: column 't': .*out of bounds.*write the file again"):
        windrow.from_arrow(pa.table({"list": lists, "t": text}))
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int8()), pa.array(["a"]), safe=False)
    with pytest.raises(SourceError, match="column 'd': "):
        windrow.from_arrow([pa.table({"d": dictionary})])


def test_altered_staged_file_is_rejected(tmp_path: Path) -> None:
    texts = [f"text number {number}" for number in range(1_000)]
    ds = windrow.from_generator(lambda: iter([pa.table({"t": texts})]), cache_dir=tmp_path)
    (path,) = tmp_path.rglob("*.arrow")
    content = path.read_bytes()
    offset = content.index(np.array([0, 13, 26], np.int32).tobytes())
    with open(path, "r+b") as file:
        file.seek(offset + 4 * 500)
        file.write(np.array([2**31 - 1], np.int32).tobytes())
    with pytest.raises(SourceError, match=r"rows 0-999: .* cannot be read \(column 't': "):
        ds.take_batch()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match="cannot be read"):
        ds.take_batch()


@pytest.mark.parametrize("items", [{"x": [1, 2]}, "text"])
def test_items_are_rows_and_not_the_keys_of_a_dict(items: Any) -> None:
    with pytest.raises(PlanError, match=r"give a list of rows.*from_numpy"):
        windrow.from_items(items)
