"""The content digest of tables depends on values, not on their memory layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.io.catalog.content_digest import digest_table

TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-5, 5)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text("ab", max_size=3)),
    "large binary": (pa.large_binary(), st.binary(max_size=3)),
    "text view": (pa.string_view(), st.text("ab", max_size=20)),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(0, 3) | st.none(), max_size=3)),
    "vector": (pa.list_(pa.float32(), 2), st.lists(st.sampled_from([0.5, 1.0]), min_size=2, max_size=2)),
    "struct": (
        pa.struct({"a": pa.int8(), "b": pa.string()}),
        st.fixed_dictionaries({"a": st.integers(0, 2), "b": st.text("x")}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int8()),
        st.lists(st.tuples(st.text("ab"), st.integers(0, 2)), max_size=2),
    ),
    "decimal": (pa.decimal128(5, 2), st.decimals(-9, 9, places=2)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.text("ab", max_size=2)),
    "time": (pa.timestamp("ms", "UTC"), st.integers(0, 3)),
}


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_digests_are_equal_exactly_for_equal_values(kind: str, data: st.DataObject) -> None:
    arrow, strategy = TYPES[kind]
    values = data.draw(st.lists(strategy | st.none(), max_size=8))
    table = pa.table({"x": pa.array(values, arrow)})
    cut = data.draw(st.integers(0, len(values)))
    # two chunks: a slice of a larger array, and an array of its own
    padded = pa.array([*values[:1], *values, *values[:2]], arrow)
    first = padded.slice(min(1, len(values)), cut)
    chunks = pa.chunked_array([first, pa.array(values[cut:], arrow)], arrow)
    assert digest_table(pa.table({"x": chunks})) == digest_table(table)
    others = data.draw(st.lists(strategy | st.none(), max_size=8))
    same = pa.array(others, arrow).to_pylist() == table["x"].to_pylist()
    assert (digest_table(pa.table({"x": pa.array(others, arrow)})) == digest_table(table)) == same


def test_values_of_null_slots_do_not_affect_the_digest() -> None:
    hidden = [pa.array(np.array(values), mask=np.array([False, True])) for values in ([1, 2], [1, 3])]
    first, second = (digest_table(pa.table({"x": array})) for array in hidden)
    assert first == second


def test_digest_depends_on_names_types_and_columns() -> None:
    x = pa.array([1, 2])
    tables = [{"x": x}, {"y": x}, {"x": x.cast(pa.int32())}, {"x": x, "y": x}, {"y": x, "x": x}]
    assert len({digest_table(pa.table(table)) for table in tables}) == len(tables)


def test_digest_of_run_end_encoded_arrays_depends_on_values_alone() -> None:
    runs = pa.RunEndEncodedArray.from_arrays
    arrays = [
        runs([2, 3], [1, None]),
        runs([1, 2, 3], [1, 1, None]),
        runs([2, 3, 4], [1, None, 5]).slice(0, 3),
    ]
    digests = {digest_table(pa.table({"x": array})) for array in arrays}
    other = digest_table(pa.table({"x": runs([1, 3], [1, None])}))
    assert len(digests) == 1
    assert other not in digests
