"""Memory returns when its last view is collected, never before, and is bounded."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.buffer_pool import ALIGNMENT_BYTES, BufferPool
from windrow.core.errors import PlanError


@given(nbytes=st.integers(1, 1 << 22))
def test_a_buffer_is_aligned_writable_and_exact(nbytes: int) -> None:
    pool = BufferPool(1 << 24)
    buffer = pool.take(nbytes)
    assert buffer.shape == (nbytes,)
    assert buffer.dtype == np.uint8
    assert buffer.flags.writeable
    assert buffer.ctypes.data % ALIGNMENT_BYTES == 0
    assert nbytes <= pool.in_use_bytes <= max(256, nbytes * 1.125)


def test_no_bytes_take_no_memory() -> None:
    pool = BufferPool(1000)
    assert pool.take(0).shape == (0,)
    assert pool.in_use_bytes == 0


def test_negative_limit_raises() -> None:
    with pytest.raises(PlanError, match="limit_bytes=-1"):
        BufferPool(-1)


def test_memory_is_used_again_for_close_sizes() -> None:
    pool = BufferPool(1 << 20)
    first = pool.take(100_000)
    address = first.ctypes.data
    del first
    assert pool.take(99_000).ctypes.data == address


def test_memory_stays_lent_while_any_view_lives() -> None:
    pool = BufferPool(1 << 20)
    array = pa.Array.from_buffers(pa.int32(), 25, [None, pa.py_buffer(pool.take(400)[100:200])])
    held = memoryview(array.buffers()[1])[12:20]
    del array
    gc.collect()
    assert (pool.in_use_bytes > 0, pool.idle_bytes) == (True, 0)
    held.release()
    gc.collect()
    assert (pool.in_use_bytes, pool.idle_bytes > 0) == (0, True)


def test_arrow_hands_the_memory_on_as_writable() -> None:
    buffer = pa.py_buffer(BufferPool(1 << 20).take(800))
    array = pa.Array.from_buffers(pa.int64(), 100, [None, buffer])
    assert np.frombuffer(array.buffers()[1], np.int64).flags.writeable


def test_idle_memory_is_bounded_and_the_longest_unused_goes_first() -> None:
    pool = BufferPool(3 * 1024)
    small, large = pool.take(1024), pool.take(2048)
    address = large.ctypes.data
    del small, large
    assert pool.idle_bytes == 3 * 1024
    other = pool.take(512)
    del other
    assert pool.idle_bytes == 2048 + 512
    assert pool.take(2048).ctypes.data == address


def test_what_alone_exceeds_the_limit_is_not_kept() -> None:
    pool = BufferPool(1000)
    buffer = pool.take(5000)
    del buffer
    assert (pool.in_use_bytes, pool.idle_bytes) == (0, 0)


def test_a_limit_is_raised_and_never_lowered() -> None:
    pool = BufferPool(1000)
    pool.raise_limit(6000)
    pool.raise_limit(0)
    buffer = pool.take(5000)
    del buffer
    assert pool.idle_bytes == 5120


def test_what_comes_back_while_the_limit_is_raised_is_counted_at_once() -> None:
    pool = BufferPool(1000)
    buffer = [pool.take(500)]

    class Limit(int):
        """Memory comes back as it is compared, while the pool is locked."""

        def __gt__(self, other: object) -> bool:
            buffer.clear()
            return super().__gt__(int(str(other)))

    pool.raise_limit(Limit(6000))
    assert not buffer
    assert not pool._returned


def test_a_failed_allocation_is_not_counted() -> None:
    pool = BufferPool(1 << 20)
    with pytest.raises(MemoryError):
        pool.take(1 << 60)
    assert pool.in_use_bytes == 0


def test_where_one_of_several_fails_those_that_were_made_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(1 << 20)
    warm = pool.take(5000)
    del warm
    left = iter([BufferPool(0)._allocate(5120)])

    def allocate(size: int) -> Any:
        try:
            return next(left)
        except StopIteration:
            raise MemoryError from None

    monkeypatch.setattr(pool, "_allocate", allocate)
    with pytest.raises(MemoryError, match="5,120 bytes"):
        pool.take_many(5000, 4)
    assert pool.in_use_bytes == 0


def test_a_buffer_outlives_its_pool() -> None:
    pool = BufferPool(1 << 20)
    buffer = pool.take(1000)
    buffer[:] = 7
    del pool
    gc.collect()
    assert int(buffer.sum()) == 7000


def test_a_finalizer_that_runs_while_its_thread_holds_the_lock_does_not_wait() -> None:
    pool = BufferPool(1 << 20)
    held = [pool.take(1000)]
    with pool._locked():
        held.clear()
        gc.collect()
    assert (pool.in_use_bytes, pool.idle_bytes) == (0, 1024)


def test_garbage_collected_inside_the_pool_comes_back() -> None:
    pool = BufferPool(1 << 20)
    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle: list[Any] = [pool.take(1000)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert pool.in_use_bytes == 0


def test_threads_never_share_memory_and_all_of_it_returns() -> None:
    pool = BufferPool(64 * 1024)
    spoilt: list[int] = []
    handed_over: list[Any] = []
    start = threading.Barrier(4)

    def use(number: int) -> None:
        start.wait()
        held: list[Any] = []
        for turn in range(400):
            buffer = pool.take(1000 + turn % 7 * 300)
            buffer[:] = number
            held.append(buffer)
            if turn % 5 == 0:
                handed_over.append(held.pop(0))  # dropped by another thread
                if len(handed_over) > 8:
                    handed_over.pop(0)
            if len(held) > 6:
                spoilt.extend(int(v) for v in held.pop(0) if v != number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    handed_over.clear()
    gc.collect()
    assert spoilt == []
    assert pool.in_use_bytes == 0
    assert pool.idle_bytes <= 64 * 1024


def test_what_others_hold_leaves_less_for_idle_memory() -> None:
    others = [0]
    pool = BufferPool(3 * 1024, other_bytes=lambda: others[0])
    buffers = [pool.take(1024) for _ in range(3)]
    others[0] = 2 * 1024
    del buffers
    assert pool.idle_bytes == 1024


def test_idle_memory_is_freed_for_reservations_of_others() -> None:
    others = [0]
    pool = BufferPool(4 * 1024, other_bytes=lambda: others[0])
    lent, *rest = [pool.take(1024) for _ in range(4)]
    del rest
    assert (pool.in_use_bytes, pool.idle_bytes) == (1024, 3 * 1024)
    others[0] = 2 * 1024
    pool.evict()
    assert (pool.in_use_bytes, pool._idle_bytes) == (1024, 1024)
    assert lent.nbytes == 1024


def test_within_the_limit_what_comes_back_waits_for_the_next_call() -> None:
    asked = []

    def other_bytes() -> int:
        asked.append(1)
        return 0

    pool = BufferPool(100 * 1024, other_bytes)
    buffers = pool.take_many(1024, 100)
    before = len(asked)
    addresses = {buffer.ctypes.data for buffer in buffers}
    del buffers
    assert len(asked) == before
    assert pool.take(1024).ctypes.data in addresses
    assert (pool.in_use_bytes, pool.idle_bytes) == (0, 100 * 1024)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_evicted_memory_goes_back_to_the_system() -> None:
    def anonymous_bytes() -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))

    pool = BufferPool(16 << 20)
    lent = [pool.take(8 << 20) for _ in range(12)]
    for buffer in lent:
        buffer[:] = 1
    filled = anonymous_bytes()
    del buffer, lent
    assert filled - anonymous_bytes() > 72 << 20
