"""Tables in memory as a source: block boundaries, sizes and pickling."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.errors import SourceError
from windrow.io.adapters.in_memory_tables import hold_tables
from windrow.io.catalog.value_sizes import cut_rows, weigh_table


@given(rows=st.integers(0, 500), row_bytes=st.integers(1, 40), target=st.integers(1, 3000))
def test_blocks_are_even_and_within_the_target(rows: int, row_bytes: int, target: int) -> None:
    borders = cut_rows(rows, rows * row_bytes, target)
    counts = np.diff(borders)
    assert borders[0] == 0
    assert borders[-1] == rows
    if rows:
        assert 1 <= counts.min() <= counts.max() <= counts.min() + 1
        assert counts.min() * row_bytes <= target or counts.min() == 1


def test_sizes_count_values_alone() -> None:
    table = pa.table({"x": pa.array(range(100), pa.int16()), "y": [None, "ab"] * 50, "z": [[1], None] * 50})
    whole = 100 * 2 + (100 * 4 + 100) + (100 * 4 + 50 * 8)
    assert weigh_table(table) == whole
    assert weigh_table(pa.concat_tables([table.slice(0, 31), table.slice(31)])) == whole
    assert weigh_table(table.slice(50)) == whole // 2


def test_pickled_slices_contain_only_their_rows() -> None:
    parent = pa.table({"x": np.arange(1_000_000), "y": ["some text"] * 1_000_000})
    source = hold_tables([parent.slice(500, 1000)], "some", 4000)
    assert len(pickle.dumps(source)) < 60_000
    again = pickle.loads(pickle.dumps(source))
    tables = [again.reader.read(address) for address in again.block_addresses]
    assert pa.concat_tables(tables).equals(parent.slice(500, 1000))
    assert again.identity() == source.identity()


def test_contents_do_not_depend_on_how_rows_are_split_into_tables() -> None:
    table = pa.table({"x": range(100), "y": [str(i) for i in range(100)]})
    one = hold_tables([table], "some", 200)
    many = hold_tables([table.slice(start, 9) for start in range(0, 100, 9)], "some", 200)
    assert one.contents == many.contents
    assert one.blocks.rows.tolist() == many.blocks.rows.tolist()
    assert one.blocks.decoded_bytes.tolist() == many.blocks.decoded_bytes.tolist()
    assert hold_tables([table], "some", 300).contents != one.contents


def test_types_are_unified_and_incompatible_ones_raise() -> None:
    parts = [pa.table({"x": pa.array([1], pa.int8()), "y": [None]}), pa.table({"x": [2], "y": ["a"]})]
    source = hold_tables(parts, "some", 100)
    assert source.schema.types == [pa.int64(), pa.string()]
    assert source.null_counts == {"x": 0, "y": 1}
    with pytest.raises(SourceError, match=r"column 'x' is string in some\[1\] but int64 in some\[0\]"):
        hold_tables([pa.table({"x": [1]}), pa.table({"x": ["a"]})], "some", 100)
