"""Columns of tensors of several shapes have the layout and metadata of Arrow's specification, and go everywhere."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import windrow
from tests.laws.examples import examples
from tests.library_versions import parquet_stores_nulls
from windrow.core.variable_tensors import (
    VariableShapeTensorType,
    is_variable_tensor,
    tensor_rows,
    to_tensor_column,
    variable_tensor,
)

KIND = variable_tensor(pa.uint8(), 3)
SHAPES = st.lists(st.none() | st.tuples(st.integers(0, 4), st.integers(0, 3), st.just(3)), max_size=20)


def _images(shapes: list[Any], dtype: Any = np.uint8) -> list[Any]:
    return [
        None
        if shape is None
        else np.arange(np.prod(shape)).reshape(shape).astype(dtype) + np.dtype(dtype).type(row)
        for row, shape in enumerate(shapes)
    ]


def _assert_same(found: Any, expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            np.testing.assert_array_equal(one, other)


def _shapes(rows: int) -> list[NDArray[Any]]:
    return _images([(1 + row % 4, 2 + row % 3, 3) for row in range(rows)])


def test_layout_is_that_of_the_specification() -> None:
    assert str(KIND.storage_type) == "struct<data: list<item: uint8>, shape: fixed_size_list<item: int32>[3]>"
    assert KIND.extension_name == "arrow.variable_shape_tensor"
    assert json.loads(KIND.__arrow_ext_serialize__()) == {}
    named = VariableShapeTensorType(
        pa.float32(), 2, dim_names=["x", "y"], permutation=[1, 0], uniform_shape=[None, 4]
    )
    assert json.loads(named.__arrow_ext_serialize__()) == {
        "dim_names": ["x", "y"],
        "permutation": [1, 0],
        "uniform_shape": [None, 4],
    }
    assert pickle.loads(pickle.dumps(named)) == named
    assert named != variable_tensor(pa.float32(), 2)
    with pytest.raises(pa.ArrowInvalid, match="is stored as struct<data"):
        VariableShapeTensorType.__arrow_ext_deserialize__(pa.int8(), b"{}")


@examples(30)
@given(SHAPES, st.sampled_from([None, [2, 0, 1]]), st.data())
def test_rows_are_those_given(shapes: list[Any], permutation: list[int] | None, data: st.DataObject) -> None:
    images = _images(shapes)
    column = to_tensor_column(images, VariableShapeTensorType(pa.uint8(), 3, permutation=permutation))
    column.validate(full=True)
    start = data.draw(st.integers(0, len(images)))
    stop = data.draw(st.integers(start, len(images)))
    _assert_same(list(tensor_rows(column.slice(start, stop - start), np.asarray)), images[start:stop])


def test_permutation_is_applied() -> None:
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    kind = VariableShapeTensorType(pa.uint8(), 2, permutation=[1, 0])
    column = to_tensor_column([image], kind)
    assert column.storage.field("shape").to_pylist() == [[3, 2]]
    assert column.storage.field("data").to_pylist() == [image.T.ravel().tolist()]
    _assert_same(windrow.from_arrow(pa.table({"x": column})).take_batch()["x"], [image])


def test_ipc_keeps_the_type() -> None:
    table = pa.table({"x": to_tensor_column(_images([(2, 2, 3), None]), KIND)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found = pa.ipc.open_stream(sink.getvalue()).read_all()
    assert found.equals(table)
    assert isinstance(found.schema.field("x").type, VariableShapeTensorType)


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "rows"])
def test_batches_have_an_array_a_row(batch_format: Any) -> None:
    if batch_format == "pandas":
        pytest.importorskip("pandas")
    images = [*_shapes(5), None]
    ds = windrow.from_arrow(pa.table({"x": to_tensor_column(images, KIND), "n": range(6)}))
    if batch_format == "rows":
        rows = ds.take(6)
        assert [list(row) for row in rows] == [["x", "n"]] * 6
        _assert_same([row["x"] for row in rows], images)
    else:
        _assert_same(list(ds.take_batch(6, batch_format=batch_format)["x"]), images)


def test_batches_never_write_to_the_data() -> None:
    memory = np.zeros(12, np.uint8)
    column = to_tensor_column([memory.reshape(2, 2, 3)], KIND)
    table = pa.table({"x": column})
    ds = windrow.from_arrow(table)
    ds.take_batch()["x"][0][:] = 9
    for batch in ds.map_batches(lambda _: table, batch_format="pyarrow").iter_batches():
        batch["x"][0][:] = 9
    assert not next(tensor_rows(table["x"].chunk(0), np.asarray)).any()  # type: ignore[union-attr]


@pytest.mark.ray_at_night
@pytest.mark.parametrize("executor", ["threads", pytest.param("ray", marks=pytest.mark.ray)])
def test_shuffle_keeps_tensors_with_their_rows(
    executor: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    stores_nulls = parquet_stores_nulls(KIND)
    images = [None if row % 7 == 3 and stores_nulls else image for row, image in enumerate(_shapes(200))]
    table = pa.table({"n": range(200), "x": to_tensor_column(images, KIND)})
    windrow.from_arrow(table, target_block_bytes="1KiB").write_parquet(tmp_path / "data")
    ds = windrow.read_parquet(tmp_path / "data")
    pipe = ds.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=1)
    pipe = pipe.options(executor=executor)
    seen = []
    for batch in pipe.iter_batches(batch_size=7):
        _assert_same(list(batch["x"]), [images[row] for row in batch["n"]])
        seen += batch["n"].tolist()
    assert sorted(seen) == sorted([*range(200)] * 2)


@pytest.mark.parametrize("write", ["write_parquet", "write_arrow"])
def test_files_keep_the_type(tmp_path: Path, write: str) -> None:
    images = [*_shapes(9), None]
    table = pa.table({"x": to_tensor_column(images, KIND)})
    if write == "write_parquet" and not parquet_stores_nulls(KIND):
        with pytest.raises(windrow.PlanError, match=r"column 'x' has nulls in lists of a fixed size"):
            windrow.from_arrow(table).write_parquet(tmp_path / "nulls")
        images, table = images[:9], table.slice(0, 9)
    getattr(windrow.from_arrow(table), write)(tmp_path / "out")
    read = windrow.read_parquet if write == "write_parquet" else windrow.read_arrow
    ds = read(tmp_path / "out")
    assert ds.schema().field("x").type == KIND
    _assert_same(list(ds.take_batch(10)["x"]), images)


def test_webdataset_of_arrays(tmp_path: Path) -> None:
    images = _shapes(5)
    windrow.from_arrow(pa.table({"x.npy": to_tensor_column(images, KIND)})).write_webdataset(tmp_path / "out")
    _assert_same(list(windrow.read_webdataset(tmp_path / "out").take_batch(5)["x.npy"]), images)
    with pytest.raises(windrow.PlanError, match="scale its tensors to one shape, or write Parquet or Arrow"):
        windrow.from_arrow(pa.table({"x": to_tensor_column(images, KIND)})).write_numpy(tmp_path / "no")


def test_torch_gives_a_list_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    images = _shapes(6)
    ds = windrow.from_arrow(pa.table({"x": to_tensor_column(images, KIND), "n": range(6)}))
    batches = list(ds.iter_torch_batches(batch_size=4))
    _assert_same([image.numpy() for batch in batches for image in batch["x"]], images)
    assert [batch["n"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    (batch,) = ds.iter_torch_batches(batch_size=6, dtypes={"x": torch.float32})
    assert {image.dtype for image in batch["x"]} == {torch.float32}
    (batch,) = ds.iter_torch_batches(
        batch_size=6, collate_fn=lambda given: [len(image) for image in given["x"]]
    )
    assert batch == [len(image) for image in images]
    with pytest.raises(windrow.PlanError, match="tensors cannot hold 'x'"):
        ds.to_torch(feature_columns=["x"])
    column = to_tensor_column([images[0], None], KIND)
    with pytest.raises(windrow.PlanError, match=r"'x' .* holds 1 null"):
        list(windrow.from_arrow(pa.table({"x": column})).iter_torch_batches(batch_size=2))


def test_functions_return_arrays_of_several_shapes() -> None:
    images = _images([(2, 3), (1, 4), (2, 3)], np.float32)
    made = windrow.range(3).map_batches(lambda batch: {"x": [images[row] for row in batch["id"]]})
    found = made.take_batch(batch_format="pyarrow")["x"]
    assert found.type == variable_tensor(pa.float32(), 2)
    _assert_same(list(made.take_batch()["x"]), images)
    # a column that has the type keeps it, also where all shapes are equal
    kept = made.map_batches(lambda batch: {"x": [image[:1, :3] + 1 for image in batch["x"]]})
    assert kept.take_batch(batch_format="pyarrow")["x"].type == found.type
    _assert_same(list(kept.take_batch()["x"]), [image[:1, :3] + 1 for image in images])
    stacked = made.map_batches(lambda batch: {"x": np.zeros((len(batch["x"]), 2, 2), np.float32)})
    assert stacked.take_batch(batch_format="pyarrow")["x"].type == found.type
    other = made.map_batches(lambda batch: {"x": [len(image) for image in batch["x"]]})
    assert other.take_batch()["x"].tolist() == [2, 1, 2]


def test_shape_that_contradicts_the_values_raises() -> None:
    good = to_tensor_column(_images([(2, 2, 3)]), KIND)
    shape = pa.array([[9, 9, 9]], pa.list_(pa.int32(), 3))
    storage = pa.StructArray.from_arrays([good.storage.field(0), shape], fields=list(KIND.storage_type))
    bad = pa.ExtensionArray.from_storage(KIND, storage)
    with pytest.raises(windrow.SourceError, match=r"of shape \[9, 9, 9\] is stored with 12 values"):
        windrow.from_arrow(pa.table({"x": bad})).take_batch()


def test_wrong_arrays_raise() -> None:
    with pytest.raises(pa.ArrowInvalid, match=r"the shape \(2, 2\), but the column has 3 dimensions"):
        to_tensor_column([np.zeros((2, 2), np.uint8)], KIND)
    assert not is_variable_tensor(pa.fixed_shape_tensor(pa.uint8(), (2, 2)))


def test_shapes_that_are_equal_in_one_block_only_need_make_column() -> None:
    images = _images([(2, 2)] * 4 + [(1 + row % 3, 3) for row in range(4)])
    ds = windrow.from_arrow(pa.table({"id": range(8)}), target_block_bytes=32)
    assert ds.num_blocks() == 2
    lists = ds.map_batches(lambda batch: {"x": [images[row] for row in batch["id"]]})
    with pytest.raises(
        windrow.TransformError, match=r"VariableShapeTensorType\(\.\.\.\)\.make_column\(arrays\)"
    ):
        list(lists.iter_batches(batch_size=3))
    kind = windrow.VariableShapeTensorType(pa.uint8(), 2)
    made = ds.map_batches(lambda batch: {"x": kind.make_column(images[row] for row in batch["id"])})
    _assert_same([image for batch in made.iter_batches(batch_size=3) for image in batch["x"]], images)
