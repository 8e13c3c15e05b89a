"""The type of decimals: what a driver states of a column, where it states all of it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from windrow.io.adapters.sql_queries import _decimal_type

FITTING = pa.decimal128(38, 2)


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (9, 3, pa.decimal128(9, 3)),
        (38, 38, pa.decimal128(38, 38)),
        (9, None, FITTING),
        (None, 3, FITTING),
        (39, 3, FITTING),
        (3, 9, FITTING),
        (0, 0, FITTING),
        (9, -1, FITTING),
    ],
)
def test_half_of_a_statement_states_nothing(precision: Any, scale: Any, expected: pa.DataType) -> None:
    stated = ("price", "decimal", None, None, precision, scale)
    assert _decimal_type([Decimal("1.25"), None], stated) == expected
