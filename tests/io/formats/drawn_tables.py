"""Tables of a few drawn types, with nulls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st


@st.composite
def drawn_tables(
    draw: st.DrawFn, values: Mapping[Any, st.SearchStrategy[Any]], least_rows: int = 0
) -> pa.Table:
    """A table of up to 30 rows and 5 columns, whose types are keys of ``values``."""
    rows = draw(st.integers(least_rows, 30))
    kinds = draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=5))
    columns = {}
    for number, kind in enumerate(kinds):
        found = draw(st.lists(st.none() | values[kind], min_size=rows, max_size=rows))
        columns[f"c{number}"] = pa.array(found, kind)
    return pa.table(columns)
