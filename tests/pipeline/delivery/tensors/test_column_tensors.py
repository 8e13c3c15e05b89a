"""Torch batches: exact values in writable memory of their own, and errors that name a fix."""

from __future__ import annotations

import collections
import gc
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.end_to_end.data import write_numbers
from tests.pipeline.columns import (
    NUMBER_TYPES,
    OBJECT_TYPES,
    SHAPED_TYPES,
    TIME_TYPES,
    arrays,
    batch_of,
    make_array,
)
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.delivery.tensors.column_tensors import TensorSpec, to_tensors
from windrow.pipeline.delivery.tensors.schema_check import check_tensor_schema, is_ragged
from windrow.pipeline.delivery.to_numpy import column_to_numpy

CODED = pa.dictionary(pa.int8(), pa.float32())
GOOD_TYPES = [*NUMBER_TYPES, *SHAPED_TYPES, CODED]
SPEC = TensorSpec()


# --- values ------------------------------------------------------------------------------


@given(arrays(types=GOOD_TYPES, nulls=False))
def test_values_shapes_and_types(array: pa.Array) -> None:
    batch = batch_of(x=array)
    SPEC.check(batch.schema, {"x": 0})
    tensor = to_tensors(batch, SPEC)["x"]
    expected = column_to_numpy(array, writable=False)
    assert tensor.shape == expected.shape
    assert tensor.dtype == torch.from_numpy(expected.copy()).dtype
    np.testing.assert_array_equal(tensor.numpy(), expected)


@pytest.mark.parametrize("arrow_type", GOOD_TYPES, ids=str)
@pytest.mark.parametrize("mutable", [False, True])
def test_tensors_are_writable_and_separate(arrow_type: pa.DataType, mutable: bool) -> None:
    """On mutable memory, and on immutable memory as in Ray's object store; any warning fails the test."""
    made = make_array(arrow_type, 9, nulls=False)
    batch = batch_of(x=made, again=made)
    if not mutable:
        batch = pa.ipc.open_stream(pa.BufferReader(_stored(batch))).read_next_batch()
        assert not batch.column("x").buffers()[-1].is_mutable
    kept = batch.column("x").to_pylist()
    tensors = to_tensors(batch, SPEC)
    tensors["x"].zero_()
    assert not tensors["x"].any()
    assert tensors["again"].any()
    if not mutable:
        assert batch.column("x").to_pylist() == kept


def _stored(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    "arrow_type", [pa.int64(), pa.float16(), pa.uint32(), pa.list_(pa.float32(), 3)], ids=str
)
def test_mutable_memory_is_not_copied(arrow_type: pa.DataType) -> None:
    array = make_array(arrow_type, 12, nulls=False).slice(4)
    tensor = to_tensors(batch_of(x=array), SPEC)["x"]
    assert tensor.data_ptr() == column_to_numpy(array, writable=False).__array_interface__["data"][0]


def test_unaligned_memory_becomes_aligned() -> None:
    raw = np.zeros(8 * 5 + 1, np.uint8)[1:]
    raw.view(np.int64)[:] = range(5)
    array = pa.Array.from_buffers(pa.int64(), 5, [None, pa.py_buffer(raw)])
    tensor = to_tensors(batch_of(x=array), SPEC)["x"]
    assert tensor.tolist() == [0, 1, 2, 3, 4]
    assert tensor.data_ptr() % 8 == 0


def test_memory_outlives_the_batch() -> None:
    batch = batch_of(x=pa.array(range(100_000)), y=pa.array(np.arange(100_000.0)))
    tensor = to_tensors(batch, SPEC)["x"]
    del batch
    gc.collect()
    _ = [np.ones(100_000, np.int64) for _ in range(4)]  # would reuse freed memory
    assert torch.equal(tensor, torch.arange(100_000))


def test_dtypes() -> None:
    batch = batch_of(a=[1, 2], b=[0.5, 1.5], c=pa.array([1, 2], pa.uint64()))
    everything = to_tensors(batch, TensorSpec(dtypes=torch.float16))
    assert {tensor.dtype for tensor in everything.values()} == {torch.float16}
    some = to_tensors(batch, TensorSpec(dtypes={"a": torch.float32}))
    assert [tensor.dtype for tensor in some.values()] == [torch.float32, torch.float64, torch.uint64]
    assert some["a"].tolist() == [1.0, 2.0]


def test_device_can_be_a_name_or_an_object() -> None:
    for device in (None, "cpu", torch.device("cpu")):
        assert to_tensors(batch_of(a=[1]), TensorSpec(device=device))["a"].device.type == "cpu"


def test_spec_pickles_and_hashes_by_value() -> None:
    spec = TensorSpec(dtypes={"a": torch.float32}, device="cpu")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(TensorSpec(dtypes={"a": torch.float32}, device="cpu"))


# --- collate_fn --------------------------------------------------------------------------


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


def test_collate_fn_gets_writable_arrays() -> None:
    def collate(batch: dict[str, np.ndarray]) -> torch.Tensor:
        batch["a"] += 1
        return torch.from_numpy(batch["a"])

    assert to_tensors(batch_of(a=[1, 2]), TensorSpec(collate_fn=collate)).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("batch_format", "kind"), [("numpy", dict), ("pandas", pd.DataFrame), ("pyarrow", pa.Table)]
)
def test_collate_fn_gets_the_requested_format(batch_format: Any, kind: type) -> None:
    spec = TensorSpec(collate_fn=type, batch_format=batch_format)
    assert to_tensors(batch_of(a=[1]), spec) is kind


def test_tensors_in_nested_structures_move_to_the_device() -> None:
    """Every machine has the meta device."""
    tensor = torch.ones(2)
    nested: dict[str, Any] = {
        "list": [tensor, "text"],
        "tuple": (tensor, 3),
        "named": Pair(tensor, [tensor]),
        "ordered": collections.OrderedDict(z=tensor),
        "user": collections.UserDict(z=tensor),
    }
    spec = TensorSpec(collate_fn=lambda batch: nested, device="meta")
    got = to_tensors(batch_of(a=[1]), spec)
    moved = [
        *(got["list"][0], got["tuple"][0], got["named"].left, got["named"].right[0]),
        *(got["ordered"]["z"], got["user"]["z"]),
    ]
    assert {found.device.type for found in moved} == {"meta"}
    assert [type(got[name]) for name in nested] == [type(value) for value in nested.values()]
    assert (got["list"][1], got["tuple"][1]) == ("text", 3)
    assert nested["list"][0].device.type == "cpu"


def test_collate_fn_accepts_any_column_type() -> None:
    schema = pa.schema({"name": pa.string()})
    spec = TensorSpec(collate_fn=len)
    spec.check(schema, {"name": 3})
    assert to_tensors(batch_of(name=["a", None]), spec) == 1


def test_error_in_collate_fn_names_the_function() -> None:
    def broken(batch: Any) -> Any:
        raise KeyError("fare")

    with pytest.raises(TransformError, match=r"collate_fn\(.*broken\): KeyError: 'fare'") as caught:
        to_tensors(batch_of(a=[1]), TensorSpec(collate_fn=broken))
    assert type(caught.value.__cause__) is KeyError


# --- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrow_type", [kind for kind in (*OBJECT_TYPES, *TIME_TYPES) if not is_ragged(kind)], ids=str
)
def test_unsupported_types_are_an_error(arrow_type: pa.DataType) -> None:
    with pytest.raises(PlanError, match="tensors cannot hold 'x'"):
        SPEC.check(pa.schema({"x": arrow_type}), {})


def test_all_unsupported_columns_are_named_with_fixes() -> None:
    schema = pa.schema(
        {"name": pa.string(), "ok": pa.int64(), "when": pa.timestamp("us"), "fare": pa.float32()}
    )
    with pytest.raises(PlanError) as caught:
        SPEC.check(schema, {"ok": 0, "fare": 12_000, "name": 3})
    message = str(caught.value)
    assert "'name' (string), 'when' (timestamp[us])" in message
    assert "'fare' (12,000 nulls)" in message
    assert "'ok'" not in message
    for fix in (
        "columns=",
        "map_batches",
        "astype('int64')",
        "collate_fn",
        "filter(pc.field('fare').is_valid())",
    ):
        assert fix in message


def test_schema_check_ignores_unselected_columns_and_unknown_null_counts() -> None:
    schema = pa.schema({"name": pa.string(), "x": pa.int64()})
    check_tensor_schema(schema, {"x": None}, ["x"])
    check_tensor_schema(schema, {}, ["x"])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float32(), pa.bool_()], ids=str)
@pytest.mark.parametrize("method", ["add_column", "filter"])
def test_the_fixes_for_nulls_work_as_written(kind: pa.DataType, method: str) -> None:
    rows = windrow.from_arrow(pa.table({"row": [1, 2, 3], "x": pa.array([1, None, 0]).cast(kind)}))
    with pytest.raises(PlanError) as caught:
        next(rows.iter_torch_batches())
    (call,) = re.findall(rf"{method}\(.*?\)\)?\)", str(caught.value))
    fixed = eval(f"rows.{call}", {"rows": rows, "pc": pc})
    assert fixed.schema().field("x").type == kind
    expected = [True, False, False] if method == "add_column" else [True, False]
    assert next(fixed.iter_torch_batches())["x"].bool().tolist() == expected


@given(arrays(types=[t for t in GOOD_TYPES if t != CODED], nulls=True))
def test_nulls_in_a_batch_are_an_error(array: pa.Array) -> None:
    if array.null_count:
        with pytest.raises(PlanError, match=r"column 'x' .* holds [1-9]\d* nulls? in \d+ rows.*fill them"):
            to_tensors(batch_of(x=array), SPEC)
    else:
        to_tensors(batch_of(x=array), SPEC)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[1.0, None]], pa.list_(pa.float64(), 2)),
        pa.array([1.0, None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([1.0, None])),
    ],
    ids=["in a list", "in the indices", "in the dictionary"],
)
def test_nulls_in_lists_and_dictionaries_are_an_error(array: pa.Array) -> None:
    with pytest.raises(PlanError, match="holds 1 null in"):
        to_tensors(batch_of(x=array), SPEC)


def test_unknown_columns_in_dtypes() -> None:
    spec = TensorSpec(dtypes={"farre": torch.float32, "tip": torch.float32})
    with pytest.raises(
        PlanError, match=r"dtypes names columns that do not exist: 'farre'; did you mean 'fare'\?"
    ):
        spec.check(pa.schema({"fare": pa.int64(), "tip": pa.int64()}), {})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtypes": torch.float32, "collate_fn": len}, "dtypes and collate_fn exclude each other"),
        ({"dtypes": "float32"}, "dtypes='float32' must be a torch.dtype"),
        ({"dtypes": {"a": np.float32}}, "must be a torch.dtype, or a dict of them"),
        ({"collate_fn": 3}, "collate_fn=3 is not callable"),
        ({"batch_format": "arrow"}, "batch_format='arrow' is unknown"),
        (
            {"batch_format": "pandas"},
            "batch_format='pandas' sets what collate_fn receives, and there is no collate_fn",
        ),
        ({"device": "gpu"}, "device='gpu' is not a torch device: give 'cpu', 'cuda'"),
        ({"device": 1.5}, "device=1.5 is not a torch device"),
        ({"pin_memory": "yes"}, "pin_memory='yes' must be True, False, or None"),
    ],
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        TensorSpec(**options)


# --- row ids -----------------------------------------------------------------------------


def _without_y(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"x": batch["x"], "id": batch["id"]}


@pytest.mark.parametrize("executor", ["threads", "ray"])
@pytest.mark.ray_at_night
def test_row_ids_are_int64_tensors(executor: str, tmp_path: Path, ray_local: Any) -> None:
    for part in range(3):
        write_numbers(tmp_path / f"{part}.parquet", 80, row_group_size=20, start=80 * part)
    ds = windrow.read_parquet(str(tmp_path), target_block_bytes=400, filter=pc.field("x") > 20)
    pipe = ds.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=8)
    pipe = pipe.options(executor=executor, row_id_column="id").map_batches(_without_y)
    rows = 0
    for batch in pipe.iter_torch_batches(16):
        assert batch["id"].dtype == torch.int64
        assert torch.equal(batch["id"], batch["x"])
        rows += len(batch["id"])
    assert rows >= 219


# --- CUDA --------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"device": "cuda:1"}, {"pin_memory": True}], ids=str)
def test_missing_cuda_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="needs CUDA, which this PyTorch does not find here"):
        TensorSpec(**options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@given(arrays(types=GOOD_TYPES, nulls=False), st.sampled_from([None, True, False]))
def test_cuda_batches(array: pa.Array, pin: bool | None) -> None:
    tensor = to_tensors(batch_of(x=array), TensorSpec(device="cuda", pin_memory=pin))["x"]
    assert tensor.device == torch.device("cuda", torch.cuda.current_device())
    np.testing.assert_array_equal(tensor.cpu().numpy(), column_to_numpy(array, writable=False))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_unknown_cuda_device_is_an_error_and_memory_can_be_pinned() -> None:
    with pytest.raises(PlanError, match="does not exist: there are"):
        TensorSpec(device="cuda:99")
    assert to_tensors(batch_of(a=[1]), TensorSpec(pin_memory=True))["a"].is_pinned()
