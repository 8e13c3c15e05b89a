"""Rows are split into files completely, in order, and into directories that readers can parse."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from windrow.core.errors import PlanError
from windrow.io.catalog.hive_partitions import find_partitions
from windrow.io.sinks.write_files import FileRows, FileSplitter, Layout

KEYS = st.none() | st.sampled_from(["a", "b/c", "", "__HIVE_DEFAULT_PARTITION__", "é=%", "..", "x y"])
NUMBERS = st.none() | st.integers(-3, 3)


@st.composite
def tables(draw: st.DrawFn) -> list[pa.Table]:
    rows = draw(st.lists(st.lists(st.tuples(KEYS, NUMBERS), max_size=6), max_size=5))
    kind = draw(st.sampled_from([pa.string(), pa.dictionary(pa.int8(), pa.string())]))
    first = 0
    made = []
    for part in rows:
        numbers = range(first, first + len(part))
        keys = (pa.array([key for key, _ in part], kind), pa.array([n for _, n in part], pa.int16()))
        made.append(pa.table({"row": pa.array(numbers, pa.int64()), "k": keys[0], "n": keys[1]}))
        first += len(part)
    return made


def cut(layout: Layout, given: list[pa.Table]) -> list[FileRows]:
    splitter = FileSplitter(layout)
    files = [file for table in given for file in splitter.add(table)]
    return files + list(splitter.finish())


@examples(60)
@given(
    given=tables(),
    by=st.sampled_from([(), ("k",), ("n",), ("k", "n"), ("n", "k")]),
    target=st.none() | st.integers(1, 60),
)
def test_every_row_is_in_the_file_of_its_directory_in_order(
    given: list[pa.Table], by: tuple[str, ...], target: int | None
) -> None:
    check_files(given, by, target)


@pytest.mark.parametrize("by", [("k",), ("k", "n"), ("n", "k")])
def test_many_rows_of_mixed_directories_stay_in_order(by: tuple[str, ...]) -> None:
    names = ["b/c", "__HIVE_DEFAULT_PARTITION__", None, "a", ""]
    rows = range(2000)
    keys = [names[row * row // 7 % 5] for row in rows]
    numbers = pa.array([row * 31 // 5 % 4 - 1 for row in rows], pa.int16())
    table = pa.table({"row": rows, "k": keys, "n": numbers})
    check_files([table.slice(0, 1500), table.slice(1500)], by, 4000)


def check_files(given: list[pa.Table], by: tuple[str, ...], target: int | None) -> None:
    files = cut(Layout(by, target), given)
    seen: dict[str, list[int]] = {}
    map_outputs: dict[str, list[int]] = {}
    for directory, map_output, rows in files:
        assert all(table.schema.names == [n for n in ("row", "k", "n") if n not in by] for table in rows)
        seen.setdefault(directory, []).extend(row for table in rows for row in table["row"].to_pylist())
        map_outputs.setdefault(directory, []).append(map_output)
    expected: dict[tuple[Any, ...], list[int]] = {}
    for table in given:
        for row in table.to_pylist():
            expected.setdefault(tuple(row[name] for name in by), []).append(row["row"])
    assert {_values(directory, by): rows for directory, rows in seen.items()} == {
        tuple(None if value is None else str(value) for value in key): rows for key, rows in expected.items()
    }
    if target is not None:
        assert all(found == list(range(len(found))) for found in map_outputs.values())


def _values(directory: str, by: tuple[str, ...]) -> tuple[Any, ...]:
    """The partition values that windrow's reader parses from a directory name."""
    partitions = find_partitions([f"{directory}file"], [])
    assert tuple(partitions.schema.names) == by
    return tuple(None if value is None else str(value) for value in partitions.values(f"{directory}file"))


@examples(40)
@given(rows=st.lists(st.integers(0, 50), max_size=8), target=st.integers(8, 200))
def test_files_have_about_the_target_size_and_memory_is_bounded(rows: list[int], target: int) -> None:
    splitter, files = FileSplitter(Layout((), target)), []
    for count in rows:
        files += list(splitter.add(pa.table({"x": pa.array(range(count), pa.int64())})))
        assert sum(splitter._bytes.values()) <= 2 * target
    rest = list(splitter.finish())
    sizes = [8 * sum(table.num_rows for table in file.tables) for file in files + rest]
    assert all(size <= max(8, target * 5 // 4) for size in sizes)
    assert all(size > target - 8 for size in sizes[:-1])
    assert len(rest) <= 1


def test_buffered_rows_of_many_directories_stay_below_twice_the_target() -> None:
    splitter = FileSplitter(Layout(("k",), 80))
    files = list(splitter.add(pa.table({"x": range(100), "k": range(100)})))
    assert sum(splitter._bytes.values()) <= 160
    assert len(files) + len(list(splitter.finish())) == 100


@pytest.mark.parametrize(
    ("by", "error"),
    [
        (("nope",), "there is no column 'nope', only x, t, k"),
        (("x", "x"), "names a column twice"),
        (("",), "a column has the empty name ''.*rename it"),
        (("t",), r"column 't' is timestamp\[s\].*cast it to pa.string\(\)"),
        (("x", "k"), None),
    ],
)
def test_values_that_no_directory_name_can_hold_raise(by: tuple[str, ...], error: str | None) -> None:
    schema = pa.schema([("x", pa.int64()), ("t", pa.timestamp("s")), ("k", pa.string())])
    if by == ("",):
        schema = schema.append(pa.field("", pa.int64()))
    if error is None:
        assert Layout(by, None).stored(schema).names == ["t"]
        with pytest.raises(PlanError, match="names every column"):
            Layout(by, None).stored(pa.schema([schema.field(name) for name in by]))
        return
    with pytest.raises(PlanError, match=error):
        Layout(by, None).stored(schema)


def test_types_whose_rows_cannot_be_split_raise() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.string_view())])
    assert Layout((), None).stored(schema) == schema
    with pytest.raises(PlanError, match="column 'v' is string_view, whose rows Arrow cannot divide"):
        Layout(("k",), None).stored(schema)
