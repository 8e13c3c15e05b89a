from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.io.files import open_parquet, write
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import Packing, bounds_table
from windrow.core.source import can_scatter, column_bounds
from windrow.io.parquet import decoder_library
from windrow.io.parquet.stored_chunks import StoredFooter

needs_library = pytest.mark.skipif(decoder_library.LIBRARY is None, reason="the C library is not built")

PAIR = pa.struct([("c", pa.string()), ("d", pa.float64())])
TABLE = pa.table(
    {
        "s": pa.array(
            [{"a": 1, "b": {"c": "x", "d": 2.5}, "e": 3}],
            pa.struct([("a", pa.int64()), ("b", PAIR), ("e", pa.int32())]),
        ),
        "l": pa.array([[{"c": "x", "d": 2.5}]], pa.list_(PAIR)),
        "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "x": [1],
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "paths"),
    [
        ("x", pa.int64(), ["x"]),
        ("x", pa.float64(), ["x"]),
        ("y", pa.float64(), []),
        ("s", pa.struct([("a", pa.int8())]), ["s.a"]),
        ("s", pa.struct([("e", pa.int8()), ("b", pa.struct([("d", pa.float64())]))]), ["s.b.d", "s.e"]),
        ("s", pa.struct([("z", pa.int8())]), ["s.a"]),
        ("s", pa.struct([("a", pa.int64()), ("b", pa.struct([("z", pa.int8())]))]), ["s.a", "s.b.c"]),
        ("l", pa.list_(pa.struct([("d", pa.float64())])), ["l.list.element.d"]),
        ("l", pa.large_list(pa.struct([("z", pa.float64())])), ["l.list.element.c"]),
        ("m", pa.map_(pa.string(), pa.int64()), ["m.key_value.key", "m.key_value.value"]),
    ],
)
def test_only_leaves_that_a_type_needs_are_read(
    tmp_path: Path, name: str, kind: pa.DataType, paths: list[str]
) -> None:
    metadata = pq.read_metadata(write(tmp_path / "t.parquet", TABLE))
    footer = StoredFooter(metadata)
    assert footer.leaf_paths([pa.field(name, kind)]) == paths
    chunks = {
        chunk.path_in_schema: chunk.total_compressed_size
        for chunk in map(metadata.row_group(0).column, range(metadata.num_columns))
    }
    read = footer.ranges([0], footer.leaf_paths([pa.field(name, kind)]))
    assert [stop - start for start, stop in read] == [chunks[path] for path in paths]


@needs_library
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["s.a"], [{"a": 1}, {"a": 2}, {"a": 3}]),
        (["s.e", "s.a"], [{"a": 1, "e": 0.5}, {"a": 2, "e": 1.5}, {"a": 3, "e": 2.5}]),
        (["l.list.element.p"], [[{"p": 1}, {"p": 2}], [], None]),
    ],
    ids=str,
)
def test_fields_of_structs_are_decoded_in_place(tmp_path: Path, columns: list[str], expected: Any) -> None:
    structs = [{"a": 1, "t": "x", "e": 0.5}, {"a": 2, "t": None, "e": 1.5}, {"a": 3, "t": "z", "e": 2.5}]
    lists = [[{"p": 1, "q": "a"}, {"p": 2, "q": "b"}], [], None]
    write(tmp_path / "t.parquet", pa.table({"s": structs, "l": lists}))
    source = open_parquet(tmp_path, columns=columns)
    parts = iter(source.reader.parts(source.addresses([0])[0]))
    part = next(parts)
    assert can_scatter(part)
    decoded = part.decode_nested(0, BufferPool(2**20))
    assert decoded is not None
    assert decoded.to_pylist() == expected
    assert decoded.type == source.schema.types[0]


@needs_library
def test_columns_that_match_are_decoded_in_place_in_a_file_that_lacks_others(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", pa.table({"x": [5, 6], "y": [1, 2]}))
    write(tmp_path / "1.parquet", pa.table({"x": [7, 8], "z": [0.5, 1.5], "y": pa.array([3, 4], pa.int8())}))
    source = open_parquet(tmp_path)
    assert source.schema.names == ["x", "y", "z"]
    for block, scattered in ((0, [True, True, False]), (1, [True, False, True])):
        parts = iter(source.reader.parts(source.addresses([block])[0]))
        part = next(parts)
        assert can_scatter(part)
        outs = ColumnMemory.take(BufferPool(0), np.full(3, 16))
        targets = np.array([1, 0], np.uint32)
        packings = np.array([Packing(8, 0)] * 3)
        done = part.scatter_values([0, 1, 2], packings, targets, outs, BufferPool(2**20)).done
        assert done.tolist() == scattered
        assert outs.column(0, 16).view(np.int64).tolist() == ([6, 5] if block == 0 else [8, 7])
        known = bounds_table([(1, 2) if block == 0 else None, None])
        assert column_bounds(part, [1, 2]).tolist() == known.tolist()
