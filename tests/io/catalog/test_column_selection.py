from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.core.errors import PlanError
from windrow.io.catalog.column_selection import make_unknown_column_error, select_columns

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
