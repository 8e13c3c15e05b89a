"""NumPy files: every type that arrays can hold is read back unchanged; others raise an error."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.io.sinks.columns import OTHERS, TYPES, arrays, same, write_bytes
from tests.laws.examples import examples
from windrow.core.errors import PlanError
from windrow.io.sinks.numpy_sink import NumpySink

TESTS = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_duration)
CARRIED = [
    kind
    for kind in TYPES
    if any(test(kind) for test in TESTS)
    or kind in (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"), pa.string(), pa.large_string())
    or pa.types.is_fixed_size_list(kind)
]


def read(data: bytes, schema: pa.Schema) -> pa.Table:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return pa.table({field.name: column(archive[field.name], field.type) for field in schema})


def column(array: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(column(array.reshape(-1), kind.value_type), kind.list_size)
    # Arrow would truncate text at a zero byte
    values = array.astype(object) if array.dtype.kind in "US" else array
    return pa.array(values, from_pandas=False).cast(kind)


@examples(15)
@given(data=st.data(), compression=st.sampled_from([None, "deflate"]))
def test_supported_types_are_read_back_unchanged(data: st.DataObject, compression: str | None) -> None:
    rows = data.draw(st.integers(0, 4))
    table = pa.table({str(kind): data.draw(arrays(kind, rows=rows, nulls=False)) for kind in CARRIED})
    texts = [text for kind in (pa.string(), pa.large_string()) for text in table[str(kind)].to_pylist()]
    assume(not any(text.endswith("\0") for text in texts))
    found = read(write_bytes(NumpySink(None, compression), table.slice(0, 1), table.slice(1)), table.schema)
    assert [name for name in table.schema.names if not same(found[name], table[name])] == []


@pytest.mark.parametrize("kind", [*TYPES, *OTHERS], ids=str)
def test_types_that_no_array_holds_raise(kind: pa.DataType) -> None:
    schema = pa.schema([("good", pa.int8()), ("c", kind)])
    if kind in CARRIED:
        NumpySink().check(schema)
        return
    with pytest.raises(PlanError, match=r"NumPy cannot carry every column: column 'c' is .*: (cast|make)"):
        NumpySink().check(schema)
    NumpySink("good").check(schema)


def test_single_column_is_written_as_npy() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(2, 3, 2))
    table = pa.table({"t": tensors, "other": [1, 2]})
    found = np.load(io.BytesIO(write_bytes(NumpySink("t"), table)))
    np.testing.assert_array_equal(found, tensors.to_numpy_ndarray())
    nested = pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 2))
    assert np.load(io.BytesIO(write_bytes(NumpySink("n"), pa.table({"n": nested})))).shape == (1, 2, 2)
    assert (NumpySink("t").suffix, NumpySink().suffix) == (".npy", ".npz")
    with pytest.raises(PlanError, match="column='no' is not there, only t, other"):
        NumpySink("no").check(table.schema)


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (pa.array([1, None]), "column 'c' has 1 nulls"),
        (pa.array([[1, None]], pa.list_(pa.int8(), 2)), "column 'c' has 1 nulls"),
        (pa.array([None, [1, 2]], pa.list_(pa.int8(), 2)), "column 'c' has 1 nulls"),
        (pa.array(["a\0"]), "ends in a zero byte"),
    ],
)
def test_values_that_no_array_holds_raise(array: pa.Array, error: str) -> None:
    with pytest.raises(PlanError, match=error):
        write_bytes(NumpySink(), pa.table({"c": array}))


def test_files_are_reproducible_and_invalid_options_raise() -> None:
    table = pa.table({"x": range(10)})
    assert write_bytes(NumpySink(), table) == write_bytes(NumpySink(), table)
    with pytest.raises(PlanError, match="npy is not compressed"):
        NumpySink("x", "deflate")
    with pytest.raises(PlanError, match=r"cannot carry the names \['a/b'\]"):
        NumpySink().check(pa.schema([("a/b", pa.int8())]))
