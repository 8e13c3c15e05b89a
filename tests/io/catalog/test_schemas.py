from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.core.errors import PlanError, SourceError
from windrow.io.catalog.schemas import (
    make_unknown_column_error,
    select_columns,
    unify_schemas,
    unify_types,
)

TEXT_CODES = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("left", "right", "unified"),
    [
        (pa.null(), TEXT_CODES, TEXT_CODES),
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.uint16(), pa.uint16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.uint64(), pa.int8(), None),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s", "UTC"), pa.timestamp("s"), None),
        (pa.time32("ms"), pa.time64("us"), pa.time64("us")),
        (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
        (pa.duration("ms"), pa.duration("us"), pa.duration("us")),
        (pa.date32(), pa.timestamp("s"), None),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.string(), pa.binary(), None),
        (TEXT_CODES, pa.string(), pa.string()),
        (TEXT_CODES, pa.large_string(), pa.large_string()),
        (TEXT_CODES, pa.int8(), None),
        (TEXT_CODES, pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.string())),
        (TEXT_CODES, pa.dictionary(pa.int8(), pa.string(), ordered=True), None),
        (pa.list_(pa.int8()), pa.large_list(pa.int32()), pa.large_list(pa.int32())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), None),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), None),
        (pa.decimal128(5, 2), pa.decimal128(6, 2), None),
    ],
)
def test_types_are_unified_without_loss(
    left: pa.DataType, right: pa.DataType, unified: pa.DataType | None
) -> None:
    assert unify_types(left, right) == unified
    assert unify_types(right, left) == unified


def test_first_schema_sets_the_order_and_any_nullable_field_wins() -> None:
    one = pa.schema([pa.field("a", pa.int8(), nullable=False), ("b", pa.null())], metadata={"k": "v"})
    two = pa.schema([("b", pa.string()), ("a", pa.int8())])
    assert unify_schemas([("1", one), ("2", two)]) == pa.schema([("a", pa.int8()), ("b", pa.string())])


def test_error_names_column_files_and_both_types() -> None:
    files = [("1.pq", pa.schema([("a", pa.int8())])), ("2.pq", pa.schema([("a", pa.int32())]))]
    files.append(("3.pq", pa.schema([("a", pa.string())])))
    with pytest.raises(SourceError, match=r"column 'a' is string in 3\.pq but int32 in 2\.pq"):
        unify_schemas(files)


@pytest.mark.parametrize("swapped", [False, True])
def test_missing_column_raises(swapped: bool) -> None:
    files = [
        ("1.pq", pa.schema([("a", pa.int8()), ("b", pa.int8())])),
        ("2.pq", pa.schema([("a", pa.int8())])),
    ]
    with pytest.raises(SourceError, match=r"column 'b' is missing in 2\.pq but int8 in 1\.pq"):
        unify_schemas(files[::-1] if swapped else files)


def test_duplicate_column_raises() -> None:
    with pytest.raises(SourceError, match=r"1\.pq has more than one column 'a'"):
        unify_schemas([("1.pq", pa.schema([("a", pa.int8()), ("a", pa.int8())]))])


SCHEMA = pa.schema([("passenger_count", pa.int8()), ("fare_amount", pa.float32()), ("Tip", pa.float32())])


def test_columns_are_selected_in_the_requested_order() -> None:
    assert select_columns(SCHEMA, None) == SCHEMA
    assert select_columns(SCHEMA, ("Tip", "passenger_count")).names == ["Tip", "passenger_count"]


def test_files_without_columns_raise() -> None:
    with pytest.raises(PlanError, match=r"the files have no columns"):
        select_columns(pa.schema([]), None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fare_amuont", "did you mean 'fare_amount'?"),
        ("PASSENGERCOUNT", "did you mean 'passenger_count'?"),
        ("tip", "did you mean 'Tip'?"),
        ("zzz", "there are 'passenger_count', 'fare_amount', 'Tip'"),
    ],
)
def test_error_suggests_the_nearest_name(name: str, message: str) -> None:
    error = make_unknown_column_error(name, SCHEMA.names, "columns=")
    assert str(error) == f"columns= has no column {name!r}: {message}"


def test_error_lists_only_some_of_many_names() -> None:
    assert str(make_unknown_column_error("zzz", [f"a{place}" for place in range(99)], "filter=")).endswith(
        "'a5', ..."
    )
