"""Record batches in memory that other processes of the node map, each as its own writable copy."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import weakref
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.buffer_pool import BufferPool, _Block
from windrow.core.mapped_files import FileMapping
from windrow.core.system.memory import MAP_PRIVATE, MAP_SHARED, check_shares_memory, open_shared_file

_PAGE_BYTES = mmap.PAGESIZE
# A column that keeps more memory than this many times its own is a slice of another one.
_MAX_COPIED = 2
# where a buffer lies: offset and size in the file of the pool
_Range = tuple[int, int]


@dataclass(frozen=True)
class _Column:
    """A column whose buffers lie in shared memory."""

    kind: pa.DataType
    length: int
    offset: int
    null_count: int
    buffers: tuple[_Range | None, ...]
    children: tuple[_Column, ...]


@dataclass(frozen=True)
class SharedBatch:
    """Where a record batch lies in the file of a `SharedPool`; picklable."""

    schema: pa.Schema
    rows: int
    # by number, those not in `rest`
    columns: dict[int, _Column]
    # all other columns, as an Arrow stream
    rest: _Range | None
    # of the host that has placed it, which is told when it is not mapped any more
    number: int = -1

    @property
    def ranges(self) -> list[_Range]:
        """All ranges of the file that the batch needs."""
        found: list[_Range] = [] if self.rest is None else [self.rest]
        waiting = list(self.columns.values())
        while waiting:
            column = waiting.pop()
            found += [each for each in column.buffers if each is not None]
            waiting += column.children
        return found


class SharedPool(BufferPool):
    """A pool whose memory is one file without a name, which processes that get its descriptor can map.

    A block that leaves the pool gives its pages back to the system; its place in the file is used again. The file is
    ``descriptor``, which the pool closes, or a new one. Raises a `PlanError` on systems without such files.
    """

    def __init__(self, limit_bytes: int, descriptor: int | None = None) -> None:
        check_shares_memory(
            "worker processes of transforms (compute=) and replicas of a shard are",
            "leave out compute=, so that threads call the function, and give every rank a shard of its own",
        )
        super().__init__(limit_bytes)
        self.descriptor = make_shared_file() if descriptor is None else descriptor
        self._closer = weakref.finalize(self, os.close, self.descriptor)
        self._places = threading.Lock()
        self._stop = 0
        self._free: dict[int, list[int]] = defaultdict(list)
        # sorted (address, size, offset) of all blocks
        self._blocks: list[tuple[int, int, int]] = []
        # blocks that have left the pool; finalizers run anywhere, so they only append
        self._left: deque[tuple[int, int, int]] = deque()

    def _allocate(self, size: int) -> _Block:
        mapped = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        with self._places:
            self._forget_left()
            if self._free[mapped]:
                offset = self._free[mapped].pop()
            else:
                offset, self._stop = self._stop, self._stop + mapped
                os.ftruncate(self.descriptor, self._stop)
        mapping = FileMapping(self.descriptor, mapped, MAP_SHARED, offset)
        whole = np.asarray(mapping)
        block = (mapping.address, mapped, offset)
        with self._places:
            insort(self._blocks, block)
        weakref.finalize(whole, _free, mapping, self._left, block, os.getpid()).atexit = False
        return _Block(whole[:size], mapping.address, size)

    def _forget_left(self) -> None:
        while self._left:
            block = self._left.popleft()
            self._blocks.remove(block)
            self._free[block[1]].append(block[2])

    def find(self, buffer: pa.Buffer) -> _Range | None:
        """Where a buffer lies in the file; None if it is other memory."""
        with self._places:
            self._forget_left()
            at = bisect_right(self._blocks, (buffer.address, 2**63, 0)) - 1
            if at < 0:
                return None
            address, size, offset = self._blocks[at]
        inside = buffer.address - address
        return (offset + inside, buffer.size) if inside + buffer.size <= size else None


def make_shared_file() -> int:
    """A descriptor of a file without a name, in memory."""
    return open_shared_file("windrow-runs")


def _free(
    mapping: FileMapping, left: deque[tuple[int, int, int]], block: tuple[int, int, int], owner: int
) -> None:
    if sys.is_finalizing() or os.getpid() != owner:
        # this process ends, and others may map what it has lent; or it was forked, and its parent still uses the memory
        return
    mapping.give_back()
    left.append(block)


def share_batch(rows: pa.RecordBatch, pool: SharedPool) -> tuple[SharedBatch, list[Any]]:
    """Describe where a batch lies in shared memory; what lies elsewhere is copied into it.

    Returns also what keeps that memory from being used again.
    """
    columns = {}
    kept: list[Any] = [rows]
    for number, array in enumerate(rows.columns):
        # of a slice, all memory of its parent would be copied
        is_whole = array.get_total_buffer_size() <= _MAX_COPIED * array.nbytes
        found = _share_column(array, pool, kept if is_whole else None)
        if found is not None:
            columns[number] = found
    others = [number for number in range(rows.num_columns) if number not in columns]
    rest = None
    if others or not rows.num_columns:
        part = rows.select(others)
        counter = pa.MockOutputStream()
        _write(part, counter)
        memory = pool.take(counter.size())
        with pa.FixedSizeBufferWriter(pa.py_buffer(memory)) as sink:
            _write(part, sink)
        rest = pool.find(pa.py_buffer(memory))
        assert rest is not None, "memory of the pool is in its file"
        kept.append(memory)
    return SharedBatch(rows.schema, rows.num_rows, columns, rest), kept


def _write(part: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, part.schema) as writer:
        writer.write_batch(part)


def _share_column(array: Any, pool: SharedPool, kept: list[Any] | None) -> _Column | None:
    """Describe a column of fixed-width values; None for others.

    Buffers outside the pool's file are copied into it, and ``kept`` gets their memory; without it, the result is None.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        inner = _share_column(array.storage, pool, kept)
        return None if inner is None else _Column(kind, len(array), 0, 0, (), (inner,))
    if not (pt.is_primitive(kind) or pt.is_fixed_size_binary(kind) or pt.is_fixed_size_list(kind)):
        return None
    children: tuple[_Column, ...] = ()
    if pt.is_fixed_size_list(kind):
        inner = _share_column(array.values, pool, kept)
        if inner is None:
            return None
        children = (inner,)
    own = array.buffers()[: 1 if pt.is_fixed_size_list(kind) else 2]
    ranges: list[_Range | None] = []
    for buffer in own:
        place = None if buffer is None else _share_buffer(buffer, pool, kept)
        if buffer is not None and place is None:
            return None
        ranges.append(place)
    return _Column(kind, len(array), array.offset, array.null_count, tuple(ranges), children)


def _share_buffer(buffer: pa.Buffer, pool: SharedPool, kept: list[Any] | None) -> _Range | None:
    """Where a buffer lies in the pool's file, into which it is copied if it does not; None: it may not be copied."""
    place = pool.find(buffer)
    if place is not None or not buffer.size:
        return place or (0, 0)
    if kept is None:
        return None
    memory = pool.take(buffer.size)
    memory[:] = np.frombuffer(buffer, np.uint8)
    kept.append(memory)
    place = pool.find(pa.py_buffer(memory))
    assert place is not None, "memory of the pool is in its file"
    return place


class SharedMemory:
    """The file of a `SharedPool`, as another process or reader maps it: a private copy, made page by page on write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def open_batch(self, batch: SharedBatch, released: Callable[[], None]) -> pa.RecordBatch:
        """Map a batch; ``released`` is called once nothing refers to its memory any more."""
        owner = _Owner(released)
        arrays: list[Any] = [None] * len(batch.schema)
        for number, column in batch.columns.items():
            arrays[number] = self._open_column(column, owner)
        if batch.rest is not None:
            with pa.ipc.open_stream(self._map(batch.rest, owner)) as stream:
                part = stream.read_next_batch()
            if not batch.schema.names:
                return part
            others = (number for number, array in enumerate(arrays) if array is None)
            for number, array in zip(others, part.columns, strict=True):
                arrays[number] = array
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)

    def _open_column(self, column: _Column, owner: _Owner) -> Any:
        children = [self._open_column(child, owner) for child in column.children]
        if isinstance(column.kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(column.kind, children[0])
        buffers = [None if place is None else self._map(place, owner) for place in column.buffers]
        return pa.Array.from_buffers(
            column.kind, column.length, buffers, column.null_count, column.offset, children
        )

    def _map(self, place: _Range, owner: _Owner) -> pa.Buffer:
        offset, size = place
        if not size:
            return pa.py_buffer(b"")
        start = offset // _PAGE_BYTES * _PAGE_BYTES
        mapping = FileMapping(self._descriptor, offset - start + size, MAP_PRIVATE, start)
        return pa.py_buffer(np.asarray(_View(mapping, owner, offset - start, size)))


class _View:
    """Owns a mapping for the arrays that view it."""

    __slots__ = ("__array_interface__", "_mapping", "_owner")

    def __init__(self, mapping: FileMapping, owner: _Owner, start: int, size: int) -> None:
        self._mapping, self._owner = mapping, owner
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (mapping.address + start, False),
        }


class _Owner:
    """Tells once when the last view of a batch is gone."""

    __slots__ = ("_released",)

    def __init__(self, released: Callable[[], None]) -> None:
        self._released = released

    def __del__(self) -> None:
        self._released()
