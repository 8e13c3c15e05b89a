"""Operations keep fixed-size lists of fixed-size lists with their rows, also of tables that are slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow
from windrow.core.chosen_rows import has_fixed_lists_in_fixed_lists

ROWS = 60


def make_table(kind: str) -> pa.Table:
    values = pa.array(np.arange(ROWS * 6))
    if kind == "tensors":
        inner = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(ROWS * 6).reshape(-1, 2))
    else:
        inner = pa.FixedSizeListArray.from_arrays(values, 2)
    lists = pa.FixedSizeListArray.from_arrays(inner, 3)
    column = pa.StructArray.from_arrays([lists], ["lists"]) if kind == "struct" else lists
    return pa.table({"row": np.arange(ROWS), "pairs": column})


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "filter by an expression": lambda ds: ds.filter(pc.field("row") > 20),
    "filter by a function": lambda ds: ds.filter(lambda row: row["row"] % 3 == 0),
    "random_shuffle": lambda ds: ds.random_shuffle(seed=1),
    "random_sample": lambda ds: ds.random_sample(0.5, seed=1),
    "sort": lambda ds: ds.sort("row", descending=True),
    "limit": lambda ds: ds.limit(30),
}


@pytest.mark.parametrize("kind", ["lists", "struct", "tensors"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_values_stay_with_their_rows(name: str, kind: str) -> None:
    table = make_table(kind)
    expected = dict(zip(table["row"].to_pylist(), table["pairs"].to_pylist(), strict=True))
    found = OPERATIONS[name](windrow.from_arrow(table.slice(10))).to_arrow()
    assert found.num_rows
    for row, pairs in zip(found["row"].to_pylist(), found["pairs"].to_pylist(), strict=True):
        assert pairs == expected[row]


def test_to_arrow_of_a_slice() -> None:
    table = make_table("lists").slice(10)
    assert windrow.from_arrow(table).to_arrow(limit=20).equals(table.slice(0, 20))


def test_which_types_are_copied() -> None:
    assert has_fixed_lists_in_fixed_lists(make_table("tensors").schema.field("pairs").type)
    assert not has_fixed_lists_in_fixed_lists(pa.list_(pa.float32(), 3))
    assert not has_fixed_lists_in_fixed_lists(pa.list_(pa.list_(pa.float32(), 3)))
