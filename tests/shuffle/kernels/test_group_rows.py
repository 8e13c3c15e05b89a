"""Grouping is stable, and a map output owns the memory of its rows and nothing else."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from tests.shuffle.tables import KINDS, make_table, rows_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError, WindrowError
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput

PER_COLUMN_BYTES = 1000


def group(
    table: pa.Table, runs: list[int], slices: list[int], rows: list[int] | None = None
) -> list[MapOutput]:
    return group_rows(
        table,
        None if rows is None else np.array(rows, np.int64),
        np.array(runs, np.uint16),
        np.arange(len(runs), dtype=np.uint32),
        np.array(slices),
        BufferPool(1 << 20),
    )


def test_entries_keep_their_order_within_a_run() -> None:
    table = pa.table({"a": [10, 11, 12, 13, 14, 15]})
    (map_output,) = group(table, [1, 0, 1, 2, 0, 1], [0, 3])
    assert rows_of(map_output).column(0).to_pylist() == [11, 14, 10, 12, 15, 13]
    assert map_output.run_starts.tolist() == [0, 2, 5, 6]
    assert map_output.places.tolist() == [1, 4, 0, 2, 5, 3]


def test_each_slice_is_a_map_output_and_runs_outside_are_left_out() -> None:
    table = pa.table({"a": [10, 11, 12, 13, 14, 15]})
    first, none, last = group(table, [1, 9, 2, 65535, 0, 1], [0, 2, 2, 3])
    assert rows_of(first).column(0).to_pylist() == [14, 10, 15]
    assert first.run_starts.tolist() == [0, 1, 3]
    assert (rows_of(none).num_rows, none.run_starts.tolist()) == (0, [0])
    assert rows_of(last).column(0).to_pylist() == [12]
    assert last.run_starts.tolist() == [0, 1]


def test_slices_need_not_begin_at_run_zero() -> None:
    (map_output,) = group(pa.table({"a": [10, 11, 12]}), [5, 0, 4], [4, 6])
    assert rows_of(map_output).column(0).to_pylist() == [12, 10]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_few_entries_of_earlier_runs_are_left_out(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(native, "LIBRARY", None)
    (map_output,) = group(pa.table({"a": range(16)}), [1] * 7 + [0] + [1] * 8, [1, 2])
    assert rows_of(map_output).column(0).to_pylist() == [entry for entry in range(16) if entry != 7]


def test_entries_can_name_their_rows() -> None:
    (map_output,) = group(pa.table({"a": [10, 11, 12]}), [1, 0, 0], [0, 2], rows=[2, 2, 0])
    assert rows_of(map_output).column(0).to_pylist() == [12, 10, 12]


@pytest.mark.parametrize("compiled", [True, False])
def test_run_ids_beyond_16_bits_sort_too(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(native, "LIBRARY", None)
    rng = np.random.default_rng(5)
    runs = rng.integers(0, 200_000, 3000).astype(np.uint32)
    table = pa.table({"run": runs, "entry": np.arange(3000)})
    places = np.zeros(3000, np.uint32)
    (map_output,) = group_rows(table, None, runs, places, np.array([0, 200_000]), BufferPool(0))
    order = np.argsort(runs, kind="stable")
    assert rows_of(map_output).column("entry").to_pylist() == order.tolist()
    assert np.array_equal(np.diff(map_output.run_starts), np.bincount(runs, minlength=200_000))


def test_rows_survive_without_columns() -> None:
    table = pa.table({"a": [1, 2, 3]}).select([])
    (map_output,) = group(table, [0, 1, 0], [0, 2])
    assert map_output.run_starts.tolist() == [0, 2, 3]
    assert map_output.places.tolist() == [0, 2, 1]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("nulls", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_pickled_map_output_is_no_larger_than_its_rows(kind: str, nulls: bool) -> None:
    table = make_table([kind], 6_000, np.random.default_rng(0), [nulls])
    runs = np.zeros(6_000, np.uint16)
    runs[:20] = 1
    places = np.zeros(6_000, np.uint32)
    map_output = group_rows(table, None, runs, places, np.array([0, 1, 2]), BufferPool(0))[1]
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(map_output, protocol=5, buffer_callback=buffers.append)
    shipped = sum(buffer.raw().nbytes for buffer in buffers)
    assert shipped <= map_output.nbytes + PER_COLUMN_BYTES
    assert len(head) + shipped < 20 * 100 + 2 * PER_COLUMN_BYTES


def test_large_dictionary_is_cut_to_the_values_of_a_map_output() -> None:
    column = pa.array([f"value {i}" for i in range(10_000)]).dictionary_encode()
    runs = [1, 1, 2, *[0] * 9997]
    used = rows_of(group(pa.table({"a": column}), runs, [1, 3])[0]).column(0)
    assert (used.to_pylist(), len(used.dictionary)) == (["value 0", "value 1", "value 2"], 3)


def test_the_order_of_an_ordered_dictionary_is_kept() -> None:
    kind = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    column = pa.DictionaryArray.from_arrays(
        pa.array([2, 0], pa.int8()), pa.array(["s", "m", "l"]), ordered=True
    )
    moved = rows_of(group(pa.table({"a": column}), [1, 0], [0, 1])[0]).column(0)
    assert (moved.type, moved.dictionary.to_pylist()) == (kind, ["s", "m", "l"])


def test_map_outputs_are_freed_one_by_one() -> None:
    pool, runs = BufferPool(1 << 20), np.repeat(np.arange(4, dtype=np.uint16), 1000)
    table = pa.table({"a": np.arange(4000), "b": np.arange(4000.0)})
    map_outputs = group_rows(table, None, runs, np.zeros(4000, np.uint32), np.arange(5), pool)
    before = pool.in_use_bytes
    del map_outputs[0]
    gc.collect()
    assert pool.in_use_bytes == before * 3 // 4


@pytest.mark.parametrize("row", [-1, 2])
def test_entries_outside_of_the_block_raise(row: int) -> None:
    with pytest.raises(WindrowError, match="outside the block's 2 rows"):
        group(pa.table({"a": [1, 2]}), [0, 0], [0, 1], rows=[0, row])


def test_entries_without_a_run_raise() -> None:
    with pytest.raises(WindrowError, match="3 entries have 2 runs and 2 places"):
        group(pa.table({"a": [1, 2, 3]}), [0, 0], [0, 1])


def test_error_names_the_column_that_arrow_cannot_move() -> None:
    column = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"]))
    with pytest.raises(PlanError, match=r"'tag'.*run_end_encoded.*cannot be moved.*cast it"):
        group(pa.table({"tag": column}), [0, 0, 0], [0, 1])


def test_grouping_imports_no_pandas() -> None:
    code = """
import sys, numpy as np, pyarrow as pa
from windrow.core.buffer_pool import BufferPool
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows
offsets, letters = pa.py_buffer(np.arange(4, dtype=np.int32)), pa.py_buffer(b"abc")
text = pa.Array.from_buffers(pa.string(), 3, [None, offsets, letters])
table, pool = pa.Table.from_arrays([text], ["text"]), BufferPool(1 << 20)
places = np.array([2, 0, 1], np.uint32)
map_outputs = group_rows(table, None, np.zeros(3, np.uint16), places, np.array([0, 1]), pool)
print(place_rows(MapOutputs(map_outputs), 0, 3, pool).column(0).to_pylist(), "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['b', 'c', 'a'] False\n"
