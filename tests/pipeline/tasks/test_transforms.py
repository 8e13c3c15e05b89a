"""Map functions: types are preserved, options are enforced, errors name function and block."""

from __future__ import annotations

import datetime
import decimal
import functools
import re
import sys
import types
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.columns import ALL_TYPES, TIME_TYPES, arrays, make_array
from windrow.core.errors import TransformError
from windrow.pipeline.delivery.to_numpy import column_to_numpy
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.transforms import apply_maps, check_schema

ORIGIN = "part-3.parquet, row groups 4-7"
TABLE = pa.table({"x": pa.array([1, 2, 3], pa.int32()), "name": ["a", "b", "c"]})


def identity(batch: Any) -> Any:
    return batch


def _map(table: pa.Table, fn: Any, **options: Any) -> pa.Table:
    return apply_maps(table, [MapBatches(fn, **options)], ORIGIN)


def _raises(fn: Any, match: str, table: pa.Table = TABLE, **options: Any) -> TransformError:
    with pytest.raises(TransformError, match=match) as caught:
        _map(table, fn, **options)
    assert ORIGIN in str(caught.value)
    return caught.value


def _copies(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in batch.items()}


# --- returned values ---------------------------------------------------------------------


@given(arrays(), st.sampled_from(["numpy", "pyarrow"]), st.sampled_from([None, 1, 4]))
def test_identity_preserves_columns(array: pa.Array, batch_format: str, size: int | None) -> None:
    table = pa.table({"x": array})
    got = _map(table, identity, batch_format=batch_format, batch_size=size)
    got.validate(full=True)
    assert got.schema.equals(table.schema)
    assert got.column("x").to_pylist() == array.to_pylist() or pa.types.is_floating(array.type)
    assert got.column("x").combine_chunks().null_count == array.null_count if len(array) else True


@given(arrays(nulls=False))
def test_copies_keep_type_and_values(array: pa.Array) -> None:
    table = pa.table({"x": array})
    got = _map(table, _copies)
    got.validate(full=True)
    assert got.schema.equals(table.schema)
    assert repr(_as_list(got)) == repr(_as_list(table))


def _as_list(table: pa.Table) -> Any:
    column = table.column("x")
    if not len(column):
        return []
    return column_to_numpy(column.combine_chunks(), writable=False).tolist()


@given(arrays(types=[t for t in ALL_TYPES if not pa.types.is_floating(t)], nulls=True))
def test_copies_keep_nulls(array: pa.Array) -> None:
    table = pa.table({"x": array})
    got = _map(table, _copies)
    got.validate(full=True)
    assert got.column("x").null_count == array.null_count
    all_null = array.null_count == len(array)
    assert got.schema.equals(table.schema) or (all_null and got.column("x").type == pa.null())


_FRAMES = [t for t in ALL_TYPES if not isinstance(t, pa.FixedShapeTensorType)]


@given(arrays(types=_FRAMES))
def test_frames_keep_type_and_values(array: pa.Array) -> None:
    table = pa.table({"x": array})
    got = _map(table, identity, batch_format="pandas")
    got.validate(full=True)
    assert got.column("x").null_count == array.null_count
    if array.null_count < len(array):
        assert got.schema.equals(table.schema)
        assert repr(_as_list(got)) == repr(_as_list(table))


def test_number_type_is_the_one_that_the_function_returns() -> None:
    for factor in (0.5, 1.0):
        assert _map(TABLE, lambda b, f=factor: {"x": b["x"] * f}).schema.field("x").type == pa.float64()
    wide = pa.table({"x": [1.0, 2.0]})
    assert _map(wide, lambda b: {"x": b["x"].astype(np.float32)}).schema.field("x").type == pa.float32()
    assert _map(TABLE, lambda b: {"x": b["x"] > 1}).schema.field("x").type == pa.bool_()


@pytest.mark.parametrize(
    ("kept", "values", "expected"),
    [
        (pa.large_string(), ["a", None], pa.large_string()),
        (pa.large_string(), np.array(["a", "b"]), pa.large_string()),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], pa.dictionary(pa.int8(), pa.string())),
        (pa.int32(), [1, None], pa.int32()),
        (pa.int8(), [1, 1000], pa.int64()),
        (pa.int32(), [1.0, 2.0], pa.float64()),
        (pa.float32(), [0.1, 0.2], pa.float64()),
        (pa.string(), [1, 2], pa.int64()),
        (pa.string(), [None, None], pa.string()),
        (pa.decimal128(9, 2), [decimal.Decimal("1.5"), None], pa.decimal128(9, 2)),
        (pa.decimal128(9, 2), [decimal.Decimal("1.555"), None], pa.decimal128(4, 3)),
        (pa.timestamp("us", "Europe/Paris"), np.array([1, 2], "M8[us]"), pa.timestamp("us", "Europe/Paris")),
        (pa.timestamp("us", "Europe/Paris"), np.array([1, 2], "M8[ns]"), pa.timestamp("ns", "Europe/Paris")),
        (pa.timestamp("s"), [datetime.datetime(2024, 1, 1, microsecond=1)] * 2, pa.timestamp("us")),
        (pa.date64(), [datetime.date(2024, 1, 1)] * 2, pa.date64()),
        (pa.list_(pa.int64(), 2), np.ones((2, 2), np.int64), pa.list_(pa.int64(), 2)),
        (pa.list_(pa.int64()), [[1], [2, 3]], pa.list_(pa.int64())),
        (pa.int64(), np.arange(2).astype(">i8"), pa.int64()),
        (pa.int64(), np.arange(4)[::2], pa.int64()),
        (pa.int64(), pa.array([1, 2], pa.int8()), pa.int8()),
        (pa.int64(), pa.chunked_array([[1], [2]]), pa.int64()),
        (pa.int64(), np.ones((2, 3), np.float32), pa.fixed_shape_tensor(pa.float32(), [3])),
        (pa.int64(), np.ones((2, 3, 0), np.float32), pa.list_(pa.list_(pa.float32(), 0), 3)),
        (pa.int64(), [np.ones((2, 2)), np.zeros((2, 2))], pa.fixed_shape_tensor(pa.float64(), [2, 2])),
        (pa.int64(), np.array([["a", "b"], ["c", "d"]]), pa.list_(pa.string(), 2)),
    ],
    ids=str,
)
def test_types_of_returned_values(kept: pa.DataType, values: Any, expected: pa.DataType) -> None:
    table = pa.table({"x": make_array(kept, 2, nulls=False)})
    got = _map(table, lambda batch: {"x": values})
    got.validate(full=True)
    assert got.schema.field("x").type == expected
    assert got.num_rows == 2


def test_torch_tensors_are_columns() -> None:
    import torch

    got = _map(TABLE, lambda batch: {"x": torch.ones((3, 2))})
    assert got.schema.field("x").type == pa.fixed_shape_tensor(pa.float32(), [2])


@pytest.mark.parametrize("arrow_type", TIME_TYPES, ids=str)
def test_nat_becomes_null(arrow_type: pa.DataType) -> None:
    def blank(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        times = batch["x"].copy()
        times[0] = "NaT"
        return {"x": times}

    got = _map(pa.table({"x": make_array(arrow_type, 3, nulls=False)}), blank)
    assert got.schema.field("x").type == arrow_type
    assert got.column("x").is_null().to_pylist() == [True, False, False]


def test_columns_can_be_renamed_dropped_added_and_reordered() -> None:
    got = _map(TABLE, lambda b: {"label": b["name"], "x": b["x"], "y": b["x"] + 1})
    assert got.to_pydict() == {"label": ["a", "b", "c"], "x": [1, 2, 3], "y": [2, 3, 4]}


def test_function_can_change_its_dict() -> None:
    def change(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["x"] = batch["x"] * 2
        batch["y"] = batch.pop("name")
        return batch

    assert _map(TABLE, change).to_pydict() == {"x": [2, 4, 6], "y": ["a", "b", "c"]}


def test_pandas_index_is_dropped() -> None:
    def sort(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.sort_values("x", ascending=False).set_index("name", drop=False)

    got = _map(TABLE, sort, batch_format="pandas")
    assert got.to_pydict() == {"x": [3, 2, 1], "name": ["c", "b", "a"]}
    assert got.schema.metadata is None


def test_nan_stays_a_number_unless_the_input_had_nulls() -> None:
    for values, nulls in (([1.0, float("nan")], 0), ([1.0, None], 1)):
        got = _map(pa.table({"x": values}), identity, batch_format="pandas")
        assert got.column("x").null_count == nulls


def test_another_thread_can_import_pandas_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    # lists, because Arrow looks for pandas when it converts arrays
    assert _map(TABLE, lambda _: {"x": [1, 2, 3]}).column("x").to_pylist() == [1, 2, 3]


def test_tensors_become_arrow_without_a_copy() -> None:
    addresses = []

    def make(_: object) -> dict[str, Any]:
        made = np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2)
        addresses.append(made.__array_interface__["data"][0])
        return {"image": made}

    column = _map(TABLE, make).column("image")
    assert [column.chunk(0).storage.values.buffers()[1].address] == addresses
    column_to_numpy(column.chunk(0), writable=True)[:] = 7
    assert column.chunk(0).to_numpy_ndarray().tolist() == np.arange(12).reshape(3, 2, 2).tolist()


def test_returned_memory_is_copied_for_writing() -> None:
    constant = np.arange(3)
    frame = pd.DataFrame({"c": np.arange(3)})
    table = pa.table({"c": pa.array([[1, 2]] * 3, pa.list_(pa.int64(), 2))})
    for made in ({"c": constant}, frame, table):
        got = _map(TABLE, lambda batch, made=made: made).column("c").chunk(0)
        column_to_numpy(got, writable=True)[:] = 7
        assert 7 not in column_to_numpy(got, writable=False)
    assert constant.tolist() == [0, 1, 2]
    passed = _map(TABLE, identity).column("x").chunk(0)
    assert (
        column_to_numpy(passed, writable=True).__array_interface__["data"][0] == passed.buffers()[1].address
    )


# --- how functions are called ------------------------------------------------------------


def test_batches_lie_within_the_block_and_the_last_is_short() -> None:
    seen: list[int] = []
    table = pa.concat_tables([pa.table({"x": range(3)}), pa.table({"x": range(3, 10)})])

    def note(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(len(batch["x"]))
        return {"x": batch["x"] * 2}

    assert _map(table, note, batch_size=4).to_pydict() == {"x": [2 * i for i in range(10)]}
    assert seen == [4, 4, 2]
    seen.clear()
    _map(table, note)
    assert seen == [10]


def test_function_is_not_called_without_rows() -> None:
    def fail(batch: Any) -> Any:
        raise AssertionError

    assert _map(TABLE.slice(0, 0), fail).equals(TABLE.slice(0, 0))


def test_row_counts_can_change_if_declared() -> None:
    def odd(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": batch["x"][batch["x"] % 2 == 1]}

    got = _map(pa.table({"x": range(10)}), odd, batch_size=3, preserves_rows=False)
    assert got.to_pydict() == {"x": [1, 3, 5, 7, 9]}
    assert _map(TABLE, lambda b: {"x": []}, batch_size=1, preserves_rows=False).num_rows == 0


def test_several_maps_are_applied_with_their_arguments() -> None:
    def add(batch: dict[str, np.ndarray], number: int, *, times: int) -> dict[str, np.ndarray]:
        return {"x": batch["x"] + number * times}

    stage = MapBatches(add, fn_args=(2,), fn_kwargs={"times": 5})
    assert apply_maps(TABLE, [stage, stage], ORIGIN).to_pydict() == {"x": [21, 22, 23]}


@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.string(), pa.list_(pa.int64(), 2)], ids=str)
def test_arrays_are_read_only_and_the_error_says_what_to_do(kind: pa.DataType) -> None:
    def write(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["x"][0] = batch["x"][1]
        return batch

    error = _raises(write, "assign a new array", pa.table({"x": make_array(kind, 3, nulls=False)}))
    assert isinstance(error.__cause__, ValueError)


def test_augmented_assignment_gets_the_same_advice() -> None:
    def write(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["x"] += 1
        return batch

    _raises(write, r"ValueError: .*read-only.*batch\['x'\] = batch\['x'\] \+ 1")


def test_a_function_that_meets_nulls_is_told_how_to_leave_them_out() -> None:
    nulls = pa.table({"x": pa.array([None, 1])})
    _raises(
        lambda batch: {"x": batch["x"] + 1}, r"TypeError: .*Nulls, as in column 'x', .*pc\.coalesce", nulls
    )
    _raises(lambda batch: {"x": [x.real for x in batch["x"]]}, r"AttributeError: .*Nulls, as in", nulls)
    error = _raises(lambda batch: None + batch["x"], "TypeError", pa.table({"x": [1]}))
    assert "Nulls" not in str(error)


# --- errors ------------------------------------------------------------------------------


def test_error_names_function_block_and_cause() -> None:
    def divide(batch: dict[str, np.ndarray]) -> Any:
        return 1 // 0

    error = _raises(functools.partial(divide), r"map_batches\(.*divide\), part-3.*ZeroDivisionError: ")
    assert type(error.__cause__) is ZeroDivisionError
    assert error.__cause__.__traceback__.tb_next.tb_frame.f_code.co_name == "divide"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("result", "match"),
    [
        (None, "returned None; return a dict of arrays"),
        ([1, 2, 3], "returned a list; return a dict"),
        (np.arange(3), r"returned an array of int64, shape \(3,\); return a dict"),
        (iter(()), "returned a tuple_iterator; return a dict"),
        ({}, "returned no columns"),
        (pa.table({}), "returned no columns"),
        ({"x": 1}, "returned an int as column 'x'; return an array or a list"),
        ({"x": "abc"}, "returned a str as column 'x'"),
        ({"x": {"a": 1}}, "returned a dict as column 'x'"),
        ({"x": np.float64(1)}, "returned a float64 as column 'x'"),
        ({"x": np.array(1)}, r"returned an array of int64, shape \(\) as column 'x'"),
        ({1: [1, 2, 3]}, "returned a column named 1; column names are strings"),
        (pd.DataFrame({0: [1, 2, 3]}), "returned a column named 0"),
        ({"x": [1, 2, 3], "y": [1, 2]}, "unequal length: 'x' has 3, 'y' has 2"),
        ({"x": [1, "a", 2]}, "returned a list as column 'x', which Arrow cannot hold"),
        ({"x": np.array([1j, 2, 3])}, "returned an array of complex128, shape .* as column 'x', which Arrow"),
        ({"x": [object()] * 3}, "returned a list as column 'x', which Arrow cannot hold"),
        (pa.Table.from_arrays([[1], [2]], names=["x", "x"]), "returned two columns named 'x'"),
        ({"x": [1, 2]}, "returned 2 rows for 3; return one row for each, or pass preserves_rows=False"),
    ],
)
def test_bad_results_are_an_error(result: Any, match: str) -> None:
    def wrong(batch: Any) -> Any:
        return result

    _raises(wrong, rf"map_batches\(.*wrong\).*{match}")


def test_schema_that_changes_within_a_block_is_an_error() -> None:
    def drift(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"x": batch["x"], "y": batch["x"] / 2 if batch["x"][0] > 1 else batch["x"]}

    _raises(drift, r"drift.*'y' is double and was int32\. Return the same", batch_size=1)


@pytest.mark.parametrize(
    ("got", "match"),
    [
        ({"a": pa.int64()}, "'b' is missing"),
        ({"a": pa.int64(), "b": pa.string(), "c": pa.int8()}, "'c' is new"),
        ({"a": pa.int32(), "b": pa.null()}, "'a' is int32 and was int64, 'b' is null and was string"),
        ({"b": pa.string(), "a": pa.int64()}, r"the order is \['b', 'a'\] and was \['a', 'b'\]"),
    ],
)
def test_check_schema(got: dict[str, pa.DataType], match: str) -> None:
    expected = pa.schema({"a": pa.int64(), "b": pa.string()})
    with pytest.raises(TransformError, match=f"{re.escape(ORIGIN)}: .*{match}"):
        check_schema(expected, pa.schema(got), ORIGIN)


def test_check_schema_compares_names_and_types_only() -> None:
    one = pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"k": "v"})])
    check_schema(one, pa.schema({"a": pa.int64()}), ORIGIN)
