"""Pruning by statistics never drops a file with rows that match the filter."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from windrow.io.catalog.filters import evaluate_filter
from windrow.io.tables.data_files import ColumnStatistics, candidate_files, supports_pruning

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
VALUES = {"x": st.integers(-3, 3), "s": st.sampled_from(["", "a", "ab", "b"])}


@st.composite
def conditions(draw: Any) -> pc.Expression:
    name = draw(st.sampled_from(["x", "s"]))
    column, value = pc.field(name), draw(VALUES[name])
    simple = [
        column == value,
        column != value,
        column < value,
        column >= value,
        column.is_null(),
        column.is_valid(),
        column.isin([value, draw(st.none() | VALUES[name])]),
    ]
    chosen = draw(st.sampled_from(simple))
    return draw(st.sampled_from([chosen, ~chosen]))


FILES = st.lists(
    st.lists(st.tuples(st.none() | VALUES["x"], st.none() | VALUES["s"]), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


def bounds(values: list[Any]) -> ColumnStatistics:
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (None, None)
    return ColumnStatistics(low, high, len(values) - len(known), len(values))


@given(FILES, conditions(), conditions(), st.sampled_from(["and", "or", "first"]))
def test_files_with_matching_rows_are_never_pruned(files: Any, first: Any, second: Any, how: str) -> None:
    condition = {"and": first & second, "or": first | second, "first": first}[how]
    known = [{"x": bounds([x for x, _ in rows]), "s": bounds([s for _, s in rows])} for rows in files]
    kept = candidate_files(condition, SCHEMA, known)
    for rows, stays in zip(files, kept, strict=True):
        table = pa.table([[x for x, _ in rows], [s for _, s in rows]], schema=SCHEMA)
        matches = evaluate_filter(condition, table).fill_null(False).to_pylist()
        assert stays or not any(matches)


def test_files_that_cannot_match_are_pruned() -> None:
    known: list[dict[str, ColumnStatistics]] = [
        {"x": ColumnStatistics(0, 4, 0, 5)},
        {"x": ColumnStatistics(5, 9)},
        {"x": ColumnStatistics(None, None, 5, 5)},
        {},
        {"x": ColumnStatistics(7, None)},
    ]
    for condition, expected in (
        (pc.field("x") > 4, [1, 3, 4]),
        (pc.field("x") == 2, [0, 3]),
        (pc.field("x").is_null(), [1, 2, 3, 4]),
        (pc.field("x").is_valid(), [0, 1, 3, 4]),
    ):
        assert candidate_files(condition, SCHEMA, known).nonzero()[0].tolist() == expected


def test_types_that_support_pruning() -> None:
    kinds = [
        pa.int8(),
        pa.date32(),
        pa.timestamp("us"),
        pa.string(),
        pa.float64(),
        pa.bool_(),
        pa.list_(pa.int8()),
    ]
    assert [supports_pruning(kind) for kind in kinds] == [True, True, True, True, False, False, False]
