"""A pool of reusable buffers, since the first touch of a fresh page costs about as much as filling it."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.native_libraries import address_of
from windrow.core.system.memory import anonymous_memory

ALIGNMENT_BYTES = 64
_MIN_CLASS_BYTES = 256
# Just below the largest block that raises glibc's mmap threshold (32 MiB).
_MALLOC_HINT_BYTES = 31 * 2**20
# Blocks of at least this size are mapped, so that dropping one returns its pages whatever malloc retains.
_MIN_MMAP_BYTES = 2**20


class BufferPool:
    """Thread-safe pool of writable buffers; a buffer returns to it when its last view is collected.

    ``limit_bytes`` is the target for lent plus idle memory and what ``other_bytes()`` says others hold.
    Beyond it the pool returns idle blocks to the system, least recently used first. It does not limit how
    much `take` lends.

    >>> pool = BufferPool(limit_bytes=1 << 20)
    >>> buffer = pool.take(1000)
    >>> buffer.shape, buffer.dtype, pool.in_use_bytes, pool.idle_bytes
    ((1000,), dtype('uint8'), 1024, 0)
    >>> view = buffer.view("uint64")
    >>> del buffer
    >>> pool.in_use_bytes
    1024
    >>> del view
    >>> pool.in_use_bytes, pool.idle_bytes
    (0, 1024)
    """

    def __init__(self, limit_bytes: int, other_bytes: Callable[[], int] = int) -> None:
        if limit_bytes < 0:
            raise PlanError(f"limit_bytes={limit_bytes} must be 0 or more")
        self._limit_bytes = limit_bytes
        self._other_bytes = other_bytes
        # malloc returns freed memory to the system until a large block has been freed once; from then on it
        # retains that much. Kernels allocate megabytes of temporaries, whose fresh pages cost 70,000 page
        # faults in an epoch of 1.4 GB; this allocation reduces them to 8,000.
        np.empty(_MALLOC_HINT_BYTES, np.uint8)
        self._lock = threading.Lock()
        self._returned: deque[_Block] = deque()
        self._idle: dict[int, deque[tuple[int, _Block]]] = {}
        self._idle_bytes = 0
        self._in_use_bytes = 0
        self._returns = 0
        # Whether the limit was exceeded without any idle memory when it was last compared. Only then is a returned
        # block dropped at once: otherwise it counts as much as while it was lent, and the next call looks at it.
        self._is_over = False

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """(nbytes,) uint8 of arbitrary content, writable and aligned to 64 bytes."""
        return self.take_many(nbytes, 1)[0]

    def take_many(self, nbytes: int, count: int) -> list[NDArray[np.uint8]]:
        """`take` ``count`` buffers, each of which returns to the pool separately."""
        if nbytes == 0:
            return [np.empty(0, np.uint8) for _ in range(count)]
        size = _size_class(nbytes)
        with self._lock:
            self._collect_returned()
            self._in_use_bytes += size * count
            blocks = self._pop_idle(size, count)
            self._evict()
        if self._is_over:
            self._reclaim_if_unlocked()
        leases: list[_Lease] = []
        try:
            leases.extend(
                _Lease(self, self._allocate(size) if block is None else block, nbytes) for block in blocks
            )
        except (MemoryError, OSError) as error:
            with self._locked():
                # the leases already created return their own bytes
                self._in_use_bytes -= size * (count - len(leases))
            raise MemoryError(f"no memory for a buffer of {size:,} bytes: {error}") from error
        return [np.asarray(lease) for lease in leases]

    @property
    def idle_bytes(self) -> int:
        """Bytes that are free for the next `take`."""
        with self._locked():
            return self._idle_bytes

    @property
    def in_use_bytes(self) -> int:
        """Bytes lent out, rounded up to the allocated sizes."""
        with self._locked():
            return self._in_use_bytes

    def raise_limit(self, limit_bytes: int) -> None:
        with self._lock:
            self._limit_bytes = max(self._limit_bytes, limit_bytes)
        self._reclaim_if_unlocked()

    def evict(self) -> None:
        """Return idle memory beyond the limit to the system; call it before others allocate."""
        with self._locked():
            pass

    def _allocate(self, size: int) -> _Block:
        """Memory that the pool does not have yet, aligned."""
        if size >= _MIN_MMAP_BYTES:
            memory = np.frombuffer(anonymous_memory(size), np.uint8)
        else:
            raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
            start = -address_of(raw) % ALIGNMENT_BYTES
            memory = raw[start : start + size]
        return _Block(memory, address_of(memory), size)

    def _pop_idle(self, size: int, count: int) -> list[_Block | None]:
        idle = self._idle.get(size, ())
        found: list[_Block | None] = [idle.pop()[1] for _ in range(min(count, len(idle)))] if idle else []
        self._idle_bytes -= size * len(found)
        return found + [None] * (count - len(found))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            self._reclaim()
            yield
        self._reclaim_if_unlocked()

    def _return_block(self, block: _Block) -> None:
        # Finalizers call this in any thread at any allocation, even in one that holds the lock:
        # the append is atomic, and nothing here blocks.
        self._returned.append(block)
        if self._is_over:
            self._reclaim_if_unlocked()

    def _reclaim_if_unlocked(self) -> None:
        # A thread that holds the lock checks again after releasing it, so no block is left behind.
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._reclaim()
            finally:
                self._lock.release()

    def _reclaim(self) -> None:
        self._collect_returned()
        self._evict()

    def _collect_returned(self) -> None:
        returned = self._returned
        while returned:
            block = returned.popleft()
            idle = self._idle.get(block.size)
            if idle is None:
                idle = self._idle[block.size] = deque()
            self._returns += 1
            idle.append((self._returns, block))
            self._in_use_bytes -= block.size
            self._idle_bytes += block.size

    def _evict(self) -> None:
        while self._idle_bytes + self._in_use_bytes + self._other_bytes() > self._limit_bytes:
            self._is_over = not self._idle_bytes
            if self._is_over:
                return
            size, idle = min(((s, d) for s, d in self._idle.items() if d), key=lambda entry: entry[1][0][0])
            idle.popleft()
            self._idle_bytes -= size
        self._is_over = False


class _Block(NamedTuple):
    """Memory with its address, since NumPy takes longer to look that up than to create a view."""

    memory: NDArray[np.uint8]
    address: int
    size: int


class _Lease:
    """Owns a block for the arrays that view it, and returns it when the last of them is collected."""

    __slots__ = ("_block", "_nbytes", "_pool")

    def __init__(self, pool: BufferPool, block: _Block, nbytes: int) -> None:
        self._pool, self._block, self._nbytes = weakref.ref(pool), block, nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # not kept: the garbage collector would look at its dict and tuples as long as the lease lives
        data = self._block.address, False
        return {"version": 3, "typestr": "|u1", "shape": (self._nbytes,), "data": data}

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            pool._return_block(self._block)


def _size_class(nbytes: int) -> int:
    """Round up to an eighth of a power of two: similar sizes share blocks, and at most an eighth is wasted."""
    if nbytes <= _MIN_CLASS_BYTES:
        return _MIN_CLASS_BYTES
    step = 1 << ((nbytes - 1).bit_length() - 4)
    return -(-nbytes // step) * step
