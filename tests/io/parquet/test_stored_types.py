"""Types that pyarrow stores in Parquet are read as what `pyarrow.parquet.read_table` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.library_versions import ARROW

LONG = "longer than twelve bytes"

VIEWS: dict[str, tuple[Any, list[Any]]] = {
    "string_view": (pa.string_view(), ["a", LONG, None, ""]),
    "binary_view": (pa.binary_view(), [b"a", LONG.encode(), None, b""]),
    "list_view": (pa.list_view(pa.int32()), [[1, 2], None, [], [3]]),
    "large_list_view": (pa.large_list_view(pa.string()), [["a"], None, [], ["b", None]]),
    "views in views": (
        pa.list_view(pa.list_view(pa.string_view())),
        [[["a"]], None, [], [[], None, [LONG]]],
    ),
    "views in a list": (pa.list_(pa.string_view()), [["a"], None, [], [LONG]]),
    "views in a struct": (
        pa.struct([("s", pa.string_view()), ("v", pa.list_view(pa.int8()))]),
        [{"s": "a", "v": [1]}, None, {"s": None, "v": None}, {"s": LONG, "v": []}],
    ),
    "views in a map": (
        pa.map_(pa.string_view(), pa.list_view(pa.int8())),
        [[("a", [1])], None, [], [("b", None)]],
    ),
}


@pytest.mark.skipif(ARROW < 21, reason="pyarrow before 21 writes no views")
@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read_as_what_is_stored(tmp_path: Path, name: str, store_schema: bool) -> None:
    kind, values = VIEWS[name]
    path = tmp_path / "x.parquet"
    table = pa.table({"x": pa.array(values, kind), "n": range(len(values))})
    pq.write_table(table, path, store_schema=store_schema)
    expected = pq.read_table(path)
    ds = windrow.read_parquet(path)
    assert ds.schema() == expected.schema.remove_metadata()
    assert ds.take() == expected.to_pylist() == table.to_pylist()
    shuffled = (
        ds.window().random_shuffle_each_window(seed=1).iter_batches(batch_size=3, batch_format="pyarrow")
    )
    rows = [row for batch in shuffled for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: row["n"]) == table.to_pylist()
