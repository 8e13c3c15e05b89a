"""Run-end encoded columns are decoded to the values that Arrow shows for them, at every level."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from windrow.core.arrow_support import decode_runs, decoded_schema, decoded_type

RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 6], pa.int16()), ["a", None, "b"])
TEXT = pa.string()
VALUES = ["a", "a", None, "b", "b", "b"]


def decode(array: Any) -> Any:
    table = decode_runs(pa.table({"x": array}))
    assert table.schema == decoded_schema(pa.schema([("x", array.type)]))
    table.validate(full=True)
    return table.column("x")


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (1, 4), (2, 3), (3, 6), (5, 6), (2, 2)])
def test_runs_and_slices_of_them_become_plain_values(start: int, stop: int) -> None:
    column = decode(RUNS.slice(start, stop - start))
    assert (column.type, column.to_pylist()) == (TEXT, VALUES[start:stop])


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x", None]).dictionary_encode(),
        pa.array(["x", None], pa.string_view()),
        pa.array([b"longer than twelve bytes", None], pa.binary_view()),
        pa.array([b"0123456789abcdef", None], pa.binary(16)),
        pa.array([[1], None]),
        pa.array([{"n": 1}, None]),
        pa.array([True, None]),
        pa.nulls(2),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1", None])),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_every_type_are_repeated(values: pa.Array) -> None:
    column = decode(pa.RunEndEncodedArray.from_arrays([1, 3], values))
    assert column.type == values.type
    assert column.to_pylist() == [values.to_pylist()[place] for place in (0, 1, 1)]


def test_runs_within_lists_structs_and_maps_are_decoded() -> None:
    offsets = pa.array([0, 2, None, 5, 6], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, RUNS)
    expected = [["a", "a"], [None, "b", "b"], None, ["b"]]
    mask = pa.array([False, True, False, False, False, False])
    keys = pa.array(list("uvwxyz"))
    cases = [
        (lists, expected),
        (lists.slice(1, 2), expected[1:3]),
        (
            pa.LargeListArray.from_arrays(pa.array([0, 2, 6], pa.int64()), RUNS),
            [["a", "a"], [None, "b", "b", "b"]],
        ),
        (pa.FixedSizeListArray.from_arrays(RUNS, 2).slice(1), [[None, "b"], ["b", "b"]]),
        (
            pa.StructArray.from_arrays([RUNS, keys], ["r", "k"], mask=mask).slice(1, 2),
            [None, {"r": None, "k": "w"}],
        ),
        (
            pa.MapArray.from_arrays(pa.array([0, 2, 6], pa.int32()), keys, RUNS).slice(1),
            [[("w", None), ("x", "b"), ("y", "b"), ("z", "b")]],
        ),
        (
            pa.ListArray.from_arrays(
                pa.array([0, 1, 6], pa.int32()), pa.StructArray.from_arrays([RUNS], ["r"])
            ),
            [[{"r": "a"}], [{"r": value} for value in VALUES[1:]]],
        ),
    ]
    for array, values in cases:
        column = decode(array)
        assert column.type == decoded_type(array.type)
        assert "run_end_encoded" not in str(column.type)
        assert column.to_pylist() == values, array.type


def test_other_columns_are_the_same_objects_buffers() -> None:
    table = pa.table({"r": RUNS, "n": range(6)})
    decoded = decode_runs(table)
    assert (
        decoded.column("n").chunk(0).buffers()[1].address == table.column("n").chunk(0).buffers()[1].address
    )
    plain = table.select(["n"])
    assert decode_runs(plain) is plain
