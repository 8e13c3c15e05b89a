"""Batches in NumPy, pandas, Arrow and Python formats: exact values, and no unintended shared memory."""

from __future__ import annotations

import datetime
import decimal
import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.columns import ALL_TYPES, NUMBER_TYPES, SHAPED_TYPES, arrays, batch_of, make_array
from windrow.core.errors import PlanError
from windrow.pipeline.delivery.batch_formats import convert, rows, to_numpy, to_numpy_batches, to_pandas
from windrow.pipeline.delivery.to_numpy import column_to_numpy, fixed_dtype


def _is_same(got: Any, value: Any, arrow_type: pa.DataType) -> bool:
    """Compare a NumPy value with the one of ``to_pylist``."""
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        return value is None if got is None else got.shape == _logical_shape(arrow_type)
    if pa.types.is_temporal(arrow_type):
        return bool(np.isnat(got)) if value is None else not np.isnat(got)
    if value is None:
        return got is None or bool(got != got)
    if isinstance(got, np.ndarray):
        inner = arrow_type.value_type
        return len(got) == len(value) and all(map(_is_same, got, value, [inner] * len(value)))
    return bool(got == value)


def _logical_shape(arrow_type: pa.FixedShapeTensorType) -> tuple[int, ...]:
    order = arrow_type.permutation or range(len(arrow_type.shape))
    return tuple(arrow_type.shape[i] for i in order)


@given(arrays(), st.booleans())
def test_values_are_preserved(array: pa.Array, writable: bool) -> None:
    got = column_to_numpy(array, writable=writable)
    assert len(got) == len(array)
    assert got.flags.writeable == writable
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    # Python's types do not hold nanoseconds, so for times only the null mask is compared
    values = [None if v is None else v for v in _pylist(array)]
    assert all(_is_same(g, v, kind) for g, v in zip(got, values, strict=True))


def _pylist(array: pa.Array) -> list[Any]:
    if pa.types.is_temporal(array.type):
        return [None if missing else 1 for missing in array.is_null().to_pylist()]
    return array.to_pylist()


@given(arrays(types=[t for t in ALL_TYPES if pa.types.is_temporal(t)]))
def test_times_keep_value_and_unit(array: pa.Array) -> None:
    got = column_to_numpy(array, writable=False)
    assert got.dtype == fixed_dtype(array.type)
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    expected = [v for v in array.cast(width).to_pylist() if v is not None]
    assert got[~np.isnat(got)].view(np.int64).tolist() == expected


@given(arrays(types=SHAPED_TYPES, nulls=False))
def test_shapes(array: pa.Array) -> None:
    got = column_to_numpy(array, writable=False)
    if isinstance(array.type, pa.FixedShapeTensorType):
        # Arrow's specification: logical dimension i is stored dimension permutation[i]. pyarrow's
        # own to_numpy_ndarray is wrong for permutations that are not their own inverse.
        order = array.type.permutation or range(len(array.type.shape))
        assert got.shape == (len(array), *_logical_shape(array.type))
        for row, stored in zip(got, array.storage.to_pylist(), strict=True):
            for place in np.ndindex(*row.shape):
                stored_place = [place[list(order).index(d)] for d in range(len(place))]
                assert row[place] == stored[np.ravel_multi_index(stored_place, array.type.shape)]
    else:
        assert got.tolist() == array.to_pylist()


@pytest.mark.parametrize("arrow_type", [t for t in NUMBER_TYPES if t != pa.bool_()], ids=str)
def test_numbers_without_nulls_are_not_copied(arrow_type: pa.DataType) -> None:
    array = make_array(arrow_type, 10, nulls=False).slice(3)
    address = array.buffers()[1].address + 3 * arrow_type.bit_width // 8
    for writable in (False, True):
        got = column_to_numpy(array, writable=writable)
        assert got.__array_interface__["data"] == (address, not writable)


def test_immutable_memory_is_copied_for_writing() -> None:
    memory = np.arange(5)
    memory.flags.writeable = False
    array = pa.array(memory)
    got = column_to_numpy(array, writable=True)
    got += 1
    assert array.to_pylist() == [0, 1, 2, 3, 4]


def test_integers_with_nulls_are_exact() -> None:
    array = pa.array([2**63 - 1, None, -(2**63)], pa.int64())
    got = column_to_numpy(array, writable=False)
    assert got.dtype == object
    assert got.tolist() == [2**63 - 1, None, -(2**63)]


def test_converting_floats_with_nulls_does_not_change_the_column() -> None:
    array = pa.array([1.0, None, 3.0])
    np.testing.assert_array_equal(column_to_numpy(array, writable=True), [1.0, np.nan, 3.0])
    assert array.to_pylist() == [1.0, None, 3.0]


def test_other_types_become_object_arrays() -> None:
    batch = batch_of(
        text=["a", None],
        data=[b"a", b""],
        price=[decimal.Decimal("1.50"), None],
        flags=pa.array([True, None]),
        lists=[[1, 2], None],
        equal_lists=[[1, 2], [3, 4]],
        record=[{"x": 1}, None],
        nothing=pa.nulls(2),
    )
    got = to_numpy(batch, writable=False)
    assert {array.dtype for array in got.values()} == {np.dtype(object)}
    assert {array.shape for array in got.values()} == {(2,)}
    assert got["flags"].tolist() == [True, None]
    assert got["lists"][0].dtype == np.int64
    assert got["equal_lists"][1].tolist() == [3, 4]
    assert got["record"].tolist() == [{"x": 1}, None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1, None, 3], pa.int64()), [1, None, 3]),
        (pa.array(["a", None]), ["a", None]),
        (pa.array([True, None]), [True, None]),
        (pa.array([None, None], pa.string()), [None, None]),
    ],
)
def test_dictionaries_decode(values: pa.Array, expected: list[Any]) -> None:
    assert column_to_numpy(values.dictionary_encode(), writable=True).tolist() == expected


def test_dictionary_values_can_be_null() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), pa.array([7, None]))
    assert column_to_numpy(array, writable=False).tolist() == [7, None, None]


def test_other_extension_types_convert_as_their_storage() -> None:
    array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0123456789abcdef"], pa.binary(16)))
    assert column_to_numpy(array, writable=False).tolist() == [b"0123456789abcdef"]


def test_writable_columns_share_no_memory() -> None:
    shared = pa.array([1, 2, 3])
    got = to_numpy(batch_of(a=shared, b=shared), writable=True)
    got["a"] += 10
    assert got["b"].tolist() == [1, 2, 3]


class _Unhashable(pa.ExtensionType):  # type: ignore[misc]
    """A user-defined type: pyarrow defines its equality, so it has no hash."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "windrow.test.unhashable")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> _Unhashable:
        return cls()


@given(arrays(), arrays(types=SHAPED_TYPES), st.booleans(), st.integers(1, 20))
def test_batches_of_a_span_equal_its_slices(
    first: pa.Array, second: pa.Array, mutable: bool, batch_rows: int
) -> None:
    rows = min(len(first), len(second))
    numbers = np.arange(rows)
    numbers.flags.writeable = mutable
    columns = {"a": first[:rows], "b": second[:rows], "c": pa.array(numbers), "d": pa.array(numbers)}
    columns["e"] = _Unhashable().wrap_array(columns["c"])
    span = pa.RecordBatch.from_pydict(columns)
    before = [batch.to_pylist() for batch in (span["a"], span["b"])]
    batches = list(to_numpy_batches(span, batch_rows))
    starts = range(0, rows, batch_rows)
    assert len(batches) == len(starts)
    for start, batch in zip(starts, batches, strict=True):
        assert list(batch) == list("abcde")
        for name, alone in to_numpy(span.slice(start, batch_rows), writable=False).items():
            assert batch[name].flags.writeable
            assert (batch[name].dtype, batch[name].shape) == (alone.dtype, alone.shape)
            assert repr(batch[name].tolist()) == repr(alone.tolist())
    for batch in batches:
        batch["c"][:] = -1
        # columns of the same memory are separate
        assert (batch["d"] >= 0).all()
        assert (batch["e"] >= 0).all()
    assert [batch.to_pylist() for batch in (span["a"], span["b"])] == before


def test_memory_outlives_the_batch() -> None:
    batch = batch_of(
        a=pa.array(range(100_000)), b=pa.array([[i, i] for i in range(100_000)], pa.list_(pa.int64(), 2))
    )
    got = to_numpy(batch, writable=True)
    del batch
    gc.collect()
    _ = [np.ones(100_000, np.int64) for _ in range(4)]  # would reuse freed memory
    assert got["a"].tolist() == list(range(100_000))
    assert got["b"].sum() == 2 * sum(range(100_000))


def test_numpy_conversion_does_not_import_pandas() -> None:
    code = """
import sys, numpy as np, pyarrow as pa
from windrow.pipeline.delivery.to_numpy import column_to_numpy
numbers = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\\1"), pa.py_buffer(np.arange(2))])
text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], "i4")), pa.py_buffer(b"ab")])
bits = pa.Array.from_buffers(pa.bool_(), 2, [None, pa.py_buffer(b"\\1")])
lists = pa.FixedSizeListArray.from_buffers(pa.list_(pa.bool_(), 2), 1, [None], children=[bits])
codes = pa.Array.from_buffers(pa.int8(), 2, [None, pa.py_buffer(np.zeros(2, "i1"))])
coded = pa.DictionaryArray.from_arrays(codes, text)
for array in (numbers, text, bits, lists, coded, pa.StructArray.from_arrays([numbers], ["x"])):
    column_to_numpy(array, writable=True)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- pandas, pyarrow, rows ---------------------------------------------------------------


def test_pandas_values_are_exact_and_writable() -> None:
    batch = batch_of(
        exact=pa.array([2**63 - 1, None]),
        flag=pa.array([True, None]),
        plain=[1, 2],
        when=pa.array([0, 1], pa.timestamp("us", "UTC")),
        tensor=pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), [1, 2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))
        ),
    )
    frame = to_pandas(batch)
    assert frame["exact"].tolist() == [2**63 - 1, pd.NA]
    assert str(frame["flag"].dtype) == "boolean"
    assert str(frame["plain"].dtype) == "int64"
    assert str(frame["when"].dtype) == "datetime64[us, UTC]"
    assert frame["tensor"][1].tolist() == [[3, 4]]
    assert isinstance(frame.index, pd.RangeIndex)
    frame.loc[0, "plain"] = 9
    assert batch.column("plain").to_pylist() == [1, 2]


@given(arrays())
def test_every_type_converts_to_pandas(array: pa.Array) -> None:
    frame = to_pandas(pa.RecordBatch.from_arrays([array], ["x"]))
    assert frame.shape == (len(array), 1)


def test_pyarrow_format_equals_the_batch() -> None:
    batch = batch_of(a=[1, 2])
    assert convert(batch, "pyarrow", writable=False).equals(pa.Table.from_batches([batch]))


def test_rows_are_python_values() -> None:
    batch = batch_of(a=[1, None], when=[datetime.date(2024, 2, 29)] * 2)
    assert list(rows(batch)) == [
        {"a": 1, "when": datetime.date(2024, 2, 29)},
        {"a": None, "when": datetime.date(2024, 2, 29)},
    ]


def test_unknown_format() -> None:
    with pytest.raises(PlanError, match=r"batch_format='polars' is unknown: use one of 'numpy'"):
        convert(batch_of(a=[1]), "polars", writable=False)  # type: ignore[arg-type]


def test_rows_become_python_objects_a_few_at_a_time() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [[i] for i in range(3_000)]})
    iterator: Any = rows(batch)
    before = sum(type(thing) is list and len(thing) == 1 for thing in gc.get_objects())
    assert next(iterator) == {"x": [0]}
    made = sum(type(thing) is list and len(thing) == 1 for thing in gc.get_objects()) - before
    assert 0 < made < 1_100
    assert [row["x"] for row in iterator] == [[i] for i in range(1, 3_000)]
    assert list(rows(batch.slice(0, 0))) == []
