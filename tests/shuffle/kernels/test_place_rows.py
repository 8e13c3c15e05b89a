"""Rows that are grouped, pickled and placed equal the rows that plain Python selects."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.shuffle.examples import by_day
from tests.shuffle.tables import KINDS, make_table
from windrow.core.arrow_support import empty_table
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError, WindrowError
from windrow.shuffle.kernels.fixed_width import fixed_width_bytes
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.place_rows import MapOutputs, place_portion, place_rows


def ship(map_output: MapOutput) -> MapOutput:
    """Send a map output through read-only memory, as Ray's object store does."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(map_output, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers])


def whole_run(table: pa.Table, positions: NDArray[np.int64], pool: BufferPool) -> list[MapOutput]:
    """Group a table for one run in which row i takes place ``positions[i]``."""
    runs, places = np.zeros(len(positions), np.uint16), positions.astype(np.uint32)
    return group_rows(table, None, runs, places, np.array([0, 1]), pool)


@by_day(30)
@given(data=st.data())
def test_rows_are_placed_at_their_positions(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=5))
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
    tables = [make_table(kinds, size, rng, [bool(rng.integers(2)) for _ in kinds]) for size in sizes]
    entries = [
        None if data.draw(st.booleans()) else rng.permutation(size)[: int(rng.integers(0, size + 1))]
        for size in sizes
    ]
    counts = [size if rows is None else len(rows) for size, rows in zip(sizes, entries, strict=True)]
    total = sum(counts)

    run_count, slice_count = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    left_out = data.draw(st.integers(0, total))
    run_starts = np.sort([0, *rng.integers(0, total - left_out + 1, run_count - 1), total - left_out])
    slice_starts = np.sort([0, *rng.integers(0, run_count + 1, slice_count - 1), run_count])
    wide = data.draw(st.booleans())
    positions = rng.permutation(total)
    runs = np.searchsorted(run_starts, positions, side="right") - 1
    places = (positions - run_starts[runs]).astype(np.uint32)
    runs[positions >= total - left_out] = 2**32 - 1 if wide else 2**16 - 1
    run_ids = runs.astype(np.uint32 if wide else np.uint16)

    pool = BufferPool(1 << 20)
    map_outputs: list[list[MapOutput]] = []
    cells_at: dict[int, list[Any]] = {}
    ends = np.cumsum([0, *counts])
    for b, table in enumerate(tables):
        mine = slice(ends[b], ends[b + 1])
        map_outputs.append(group_rows(table, entries[b], run_ids[mine], places[mine], slice_starts, pool))
        columns = [column.to_pylist() for column in table.columns]
        named = entries[b]
        rows = range(sizes[b]) if named is None else named.tolist()
        cells_at.update(zip(positions[mine].tolist(), [[c[r] for c in columns] for r in rows], strict=True))
    if data.draw(st.booleans()):
        map_outputs = [[ship(map_output) for map_output in of_block] for of_block in map_outputs]

    schema = tables[0].schema
    for k in range(slice_count):
        of_slice = MapOutputs(of_block[k] for of_block in map_outputs)
        for run in range(slice_starts[k], slice_starts[k + 1]):
            expected = [cells_at[p] for p in range(run_starts[run], run_starts[run + 1])]
            batch = place_rows(of_slice, run - slice_starts[k], len(expected), pool)
            batch.validate(full=True)
            assert batch.schema.equals(schema, check_metadata=True)
            assert batch.num_rows == len(expected)
            for column, of_column in zip(batch.columns, zip(*expected, strict=True), strict=False):
                assert column.to_pylist() == list(of_column)
                if is_plain(column):
                    assert all(b is None or not memoryview(b).readonly for b in column.buffers())
            if not expected:
                continue
            low, high = sorted(rng.choice(len(expected) + 1, 2, replace=False).tolist())
            some = slice(low, high)
            portion = place_portion(of_slice, run - slice_starts[k], len(expected), some, pool)
            portion.validate(full=True)
            assert portion.schema.equals(schema, check_metadata=True)
            assert portion.num_rows == high - low
            for part, column in zip(portion.columns, batch.columns, strict=True):
                assert part.to_pylist() == column.to_pylist()[some]


def is_plain(array: pa.Array) -> bool:
    """Return whether a column has a fixed width, or holds fixed-size lists without nulls."""
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    if pa.types.is_fixed_size_list(storage.type):
        return (
            len(array) > 0
            and not storage.null_count
            and not storage.flatten().null_count
            and is_plain(storage.flatten())
        )
    return fixed_width_bytes(storage.type) > 0


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    "nulls", [pytest.param((False, False), marks=pytest.mark.nightly), (True, True), (False, True)]
)
def test_every_type_is_grouped_and_placed(kind: str, nulls: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(3)
    tables = [make_table([kind], 50, rng, [with_nulls]) for with_nulls in nulls]
    positions, pool = rng.permutation(100), BufferPool(1 << 20)
    map_outputs = [
        ship(whole_run(t, p, pool)[0]) for t, p in zip(tables, positions.reshape(2, 50), strict=True)
    ]
    batch = place_rows(MapOutputs(map_outputs), 0, 100, pool)
    cells = [cell for table in tables for cell in table.column(0).to_pylist()]
    assert batch.column(0).to_pylist() == [cells[i] for i in np.argsort(positions)]


_VALUE = pa.field("value", pa.int8(), nullable=False, metadata={"unit": "metre"})
_NAMED = [
    pa.list_(_VALUE),
    pa.large_list(_VALUE),
    pa.list_view(_VALUE),
    pa.list_(_VALUE, 2),
    pa.struct([("text", pa.string_view()), ("pairs", pa.list_(pa.field("pair", pa.list_(_VALUE, 2)), 2))]),
    pa.map_(pa.field("name", pa.string(), nullable=False), _VALUE, keys_sorted=True),
    pa.dictionary(pa.int8(), pa.string(), ordered=True),
]


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("kind", [*_NAMED, *(kind for kind, _ in KINDS.values())], ids=str)
def test_sent_rows_keep_the_fields_within_their_types(kind: pa.DataType, rows: int) -> None:
    schema, pool = pa.schema([pa.field("x", kind, metadata={"a": "b"})], {"c": "d"}), BufferPool(0)
    table = pa.Table.from_arrays([pa.nulls(rows, kind)], schema=schema)
    (map_output,) = map(ship, whole_run(table, np.arange(rows)[::-1], pool))
    batch = place_rows(MapOutputs([map_output]), 0, rows, pool)
    batch.validate(full=True)
    assert batch.schema.equals(schema, check_metadata=True)
    # `equals` takes maps of sorted and of unsorted keys for the same
    assert str(batch.column(0).type) == str(kind)
    assert batch.column(0).to_pylist() == [None] * rows


def test_portion_of_a_run_that_lacks_a_place_raises() -> None:
    table, pool = pa.table({"x": [1, 2, 3, 4]}), BufferPool(0)
    map_outputs = MapOutputs(whole_run(table, np.array([0, 1, 2, 2]), pool))
    with pytest.raises(WindrowError, match="run 0 needs 4 places, each once; its map outputs hold 4 others"):
        place_portion(map_outputs, 0, 4, slice(0, 1), pool)


def test_portion_takes_memory_only_for_its_rows() -> None:
    table, pool = pa.table({"x": np.arange(1000.0), "y": ["text" * 100] * 1000}), BufferPool(0)
    map_outputs = MapOutputs(whole_run(table, np.random.default_rng(0).permutation(1000), pool))
    before = pool.in_use_bytes
    portion = place_portion(map_outputs, 0, 1000, slice(100, 110), pool)
    assert portion.nbytes < 10 * (8 + 408) + 100
    assert pool.in_use_bytes - before < 2 * 10 * (8 + 408 + 4) + 1000


def test_bits_of_floats_are_kept() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF0DEADBEEF0001, 1 << 63, 1], np.uint64)
    table = pa.table({"x": pa.Array.from_buffers(pa.float64(), 4, [None, pa.py_buffer(bits)])})
    batch = place_rows(
        MapOutputs(whole_run(table, np.array([3, 2, 1, 0]), pool := BufferPool(0))), 0, 4, pool
    )
    assert np.array_equal(np.frombuffer(batch.column(0).buffers()[1], np.uint64), bits[::-1])


def test_referenced_column_is_not_overwritten_and_others_are_freed() -> None:
    pool, positions = BufferPool(1 << 24), np.arange(5000)[::-1].copy()
    table = pa.table({name: np.arange(5000) for name in "abc"})
    map_outputs = whole_run(table, positions, pool)
    before = pool.in_use_bytes
    held = place_rows(MapOutputs(map_outputs), 0, 5000, pool).column("b")
    gc.collect()
    assert pool.in_use_bytes - before <= 5000 * 8 * 1.125
    other = pa.table({name: np.full(5000, -1) for name in "abc"})
    for _ in range(5):
        place_rows(MapOutputs(whole_run(other, positions, pool)), 0, 5000, pool)
    assert held.to_pylist() == positions.tolist()


def test_buffers_are_reused() -> None:
    pool, table = BufferPool(1 << 24), pa.table({"a": np.arange(5000)})
    map_outputs = whole_run(table, np.arange(5000), pool)

    idle = set()
    for _ in range(4):
        place_rows(MapOutputs(map_outputs), 0, 5000, pool)
        idle.add(pool.idle_bytes)
    assert len(idle) == 1


def test_map_outputs_in_any_order_make_the_same_run() -> None:
    rng, pool = np.random.default_rng(1), BufferPool(1 << 20)
    tables = [make_table(["int64", "dictionary"], 20, rng, [False, True]) for _ in range(3)]
    positions = rng.permutation(60).reshape(3, 20)
    map_outputs = [whole_run(t, p, pool)[0] for t, p in zip(tables, positions, strict=True)]
    first = place_rows(MapOutputs(map_outputs), 0, 60, pool)
    assert first.to_pylist() == place_rows(MapOutputs(map_outputs[::-1]), 0, 60, pool).to_pylist()


def test_a_run_without_rows_is_an_empty_batch() -> None:
    pool = BufferPool(0)
    for kind in KINDS:
        schema = pa.schema([("x", KINDS[kind][0])])
        empty = whole_run(empty_table(schema), np.arange(0), pool)
        batch = place_rows(MapOutputs(empty), 0, 0, pool)
        assert (batch.num_rows, batch.schema) == (0, schema)


def _twice(map_output: MapOutput) -> list[MapOutput]:
    return [map_output, map_output]


def _same_place(map_output: MapOutput) -> list[MapOutput]:
    return [replace(map_output, places=np.zeros_like(map_output.places))]


def _beyond(map_output: MapOutput) -> list[MapOutput]:
    return [replace(map_output, places=map_output.places + np.uint32(1))]


@pytest.mark.parametrize("spoil", [_twice, _same_place, _beyond])
def test_run_with_rows_missing_or_doubled_raises(spoil: Any) -> None:
    table, pool = pa.table({"a": np.arange(4)}), BufferPool(0)
    map_outputs = spoil(whole_run(table, np.arange(4), pool)[0])
    with pytest.raises(WindrowError, match="run 0 needs 4 places, each once"):
        place_rows(MapOutputs(map_outputs), 0, 4, pool)


def test_dictionaries_too_large_for_one_index_raise() -> None:
    pool, schema = BufferPool(0), pa.schema([("tag", pa.dictionary(pa.int8(), pa.string()))])
    halves = [[f"{half}{i}" for i in range(100)] for half in "ab"]
    tables = [pa.table([pa.array(half, schema.field(0).type)], schema=schema) for half in halves]
    positions = np.arange(200).reshape(2, 100)
    map_outputs = [whole_run(t, p, pool)[0] for t, p in zip(tables, positions, strict=True)]
    with pytest.raises(PlanError, match=r"'tag'.*more different values than int8 indices.*pa\.int32\(\)"):
        place_rows(MapOutputs(map_outputs), 0, 200, pool)
