"""Batches in shared memory: equal, writable without effect on others, and released once nothing views them."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.core.shared_batches import SharedMemory, SharedPool, share_batch


def _pooled(values: Any, pool: SharedPool) -> pa.Array:
    memory = pool.take(values.nbytes)
    memory.view(values.dtype)[:] = values
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(memory)])


@pytest.fixture
def pool() -> SharedPool:
    return SharedPool(1 << 24)


def _batch(pool: SharedPool) -> pa.RecordBatch:
    x = _pooled(np.arange(5_000), pool)
    lists = pa.FixedSizeListArray.from_arrays(_pooled(np.arange(10_000, dtype=np.float32), pool), 2)
    columns = {
        "x": x,
        "text": [f"row {i}" for i in range(5_000)],
        "lists": lists,
        "tensors": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2]), lists),
        "tag": pa.array(["a", None] * 2_500).dictionary_encode(),
    }
    return pa.record_batch(columns)


def test_a_batch_is_equal_after_the_way_through_shared_memory(pool: SharedPool) -> None:
    rows = _batch(pool)
    shared, kept = share_batch(rows, pool)
    assert sorted(shared.columns) == [0, 2, 3]
    found = SharedMemory(pool.descriptor).open_batch(pickle.loads(pickle.dumps(shared)), lambda: None)
    assert found.equals(rows)
    assert found.schema.equals(rows.schema)
    del kept


def test_writing_changes_neither_the_batch_nor_other_readers(pool: SharedPool) -> None:
    rows = _batch(pool)
    shared, _kept = share_batch(rows, pool)
    memory = SharedMemory(pool.descriptor)
    one, other = (memory.open_batch(shared, lambda: None) for _ in range(2))
    values = np.frombuffer(one.column("x").buffers()[1], np.int64)
    assert values.flags.writeable
    values[:] = -1
    assert one.column("x").to_pylist() == [-1] * 5_000
    assert other.equals(rows)


def test_release_is_told_once_nothing_views_the_memory(pool: SharedPool) -> None:
    shared, _kept = share_batch(_batch(pool), pool)
    told: list[int] = []
    rows = SharedMemory(pool.descriptor).open_batch(shared, lambda: told.append(1))
    values = np.frombuffer(rows.column("x").buffers()[1], np.int64)
    del rows
    gc.collect()
    assert told == []
    del values
    gc.collect()
    assert told == [1]


def test_memory_is_used_again_and_returned(pool: SharedPool) -> None:
    def resident() -> int:
        return os.fstat(pool.descriptor).st_blocks * 512

    for _ in range(10):
        shared, kept = share_batch(_batch(pool), pool)
        del kept
    size = os.fstat(pool.descriptor).st_size
    assert resident() > 0
    assert size < 3 * (5_000 * 8 + 10_000 * 4 + 200_000)
    pool._limit_bytes = 0
    pool.evict()
    assert resident() == 0
    shared, kept = share_batch(_batch(pool), pool)
    assert os.fstat(pool.descriptor).st_size == size
    assert SharedMemory(pool.descriptor).open_batch(shared, lambda: None).num_rows == 5_000
    del kept


def test_no_columns_and_no_rows(pool: SharedPool) -> None:
    memory = SharedMemory(pool.descriptor)
    for rows in (pa.record_batch({"x": [1, 2]}).select([]), pa.record_batch({"x": pa.array([], pa.int8())})):
        shared, _kept = share_batch(rows, pool)
        found = memory.open_batch(shared, lambda: None)
        assert (found.num_rows, found.schema) == (rows.num_rows, rows.schema)


def test_a_forked_child_keeps_what_its_parent_gives_back(pool: SharedPool) -> None:
    shared, _kept = share_batch(_batch(pool), pool)
    rows = SharedMemory(pool.descriptor).open_batch(shared, lambda: None)
    expected = rows.to_pydict()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # until the parent has overwritten the memory that it had given back
        os.close(write)
        os.read(read, 1)
        os._exit(rows.to_pydict() != expected)
    os.close(read)
    os.pwrite(pool.descriptor, bytes(os.fstat(pool.descriptor).st_size), 0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # those of the process that has forked are copies from then on, too
    assert rows.to_pydict() == expected


CHILD = """
import pickle, sys
from windrow.core.shared_batches import SharedMemory
shared = pickle.load(sys.stdin.buffer)
print(SharedMemory(int(sys.argv[1])).open_batch(shared, lambda: None).column("x")[-1].as_py())
"""


def test_another_process_maps_it(pool: SharedPool) -> None:
    shared, _kept = share_batch(_batch(pool), pool)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(pool.descriptor)],
        input=pickle.dumps(shared),
        pass_fds=[pool.descriptor],
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"4999\n"


def test_batches_keep_no_file_open(pool: SharedPool) -> None:
    memory = SharedMemory(pool.descriptor)
    before = len(os.listdir("/proc/self/fd"))
    held = []
    for _ in range(20):
        shared, kept = share_batch(_batch(pool), pool)
        held.append((memory.open_batch(shared, lambda: None), kept))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_process_takes_no_memory_from_its_parent(pool: SharedPool) -> None:
    shared, kept = share_batch(_batch(pool), pool)
    child = os.fork()
    if not child:
        del kept
        pool._limit_bytes = 0
        pool.evict()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found = SharedMemory(pool.descriptor).open_batch(shared, lambda: None)
    assert found.equals(_batch(pool))
