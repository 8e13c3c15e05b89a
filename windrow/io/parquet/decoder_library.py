"""The C decoder as loaded with ctypes, and what its callers share."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.native_libraries import Address, load_library
from windrow.io.parquet.codecs import SystemCodecs

__all__ = ["LIBRARY", "SCRATCH", "read_chunks", "read_into", "read_pages"]

# holds a dictionary and a page; writers make both about 1 MiB, sometimes slightly more
_SCRATCH_BYTES = 4 * 2**20

_POINTER, _INT = Address, ctypes.c_int64


_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "windrow_decode_chunks": ([_INT, _POINTER, _POINTER], None),
    "windrow_locate_text": ([*[_POINTER] * 3, _INT, _INT], _INT),
    "windrow_find_pages": ([_POINTER, _INT, _POINTER, _INT], _INT),
    "windrow_sum_pages": ([_POINTER, _INT, _POINTER], _INT),
    "windrow_count_rows": ([_POINTER, _INT, _INT, _INT], _INT),
    "windrow_decode_nested": ([_INT, *[_POINTER] * 3, _INT, _POINTER, _INT], None),
    "windrow_measure_text": ([_POINTER, _POINTER, _INT, _INT, _POINTER], _INT),
    "windrow_gather_text": ([_POINTER, _POINTER, _INT, _POINTER, _INT], None),
    "windrow_check_footer": ([_POINTER, _INT, _POINTER, _INT, _POINTER, _INT], _INT),
}
# Parquet's values are little-endian, and are copied unchanged
LIBRARY: Any = load_library("windrow.io.parquet._decode", _FUNCTIONS) if sys.byteorder == "little" else None


class _Scratch(threading.local):
    """What the calling thread reuses: memory for a dictionary and a page, and its codecs."""

    def __init__(self) -> None:
        self.memory = np.empty(_SCRATCH_BYTES, np.uint8)
        self.codecs = SystemCodecs()


SCRATCH = _Scratch()


def read_into(file: pa.NativeFile, start: int, out: NDArray[np.uint8]) -> bool:
    """Read bytes of a local file into memory, which costs less than mapping and copying them; False if it cannot."""
    if not isinstance(file, pa.MemoryMappedFile):
        return False
    return os.preadv(file.fileno(), [out.data], start) == len(out)


def read_chunks(
    file: pa.NativeFile, chunks: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[pa.Buffer]]:
    """Read the pages of chunks, given by their offsets and bytes.

    Returns the address and bytes of each, (0, 0) if the file ends before, and the buffers that hold them. Adjacent
    ones of a local file are read at once: a read takes some microseconds, and files of a thousand columns have as
    many chunks.
    """
    joins = isinstance(file, pa.MemoryMappedFile)
    found, buffers = [(0, 0)] * len(chunks), []
    order = sorted(range(len(chunks)), key=chunks.__getitem__)
    first = 0
    while first < len(order):
        start, size_bytes = chunks[order[first]]
        stop, last = start + size_bytes, first + 1
        while joins and last < len(order) and chunks[order[last]][0] == stop:
            stop += chunks[order[last]][1]
            last += 1
        file.seek(start)
        pages = file.read_buffer(stop - start)
        buffers.append(pages)
        for at in order[first:last]:
            offset, size_bytes = chunks[at][0] - start, chunks[at][1]
            if offset + size_bytes <= pages.size:
                found[at] = pages.address + offset, size_bytes
        first = last
    return found, buffers


def read_pages(file: pa.NativeFile, start: int, size_bytes: int) -> pa.Buffer | None:
    """Read the pages of a chunk; None if the file ends before."""
    file.seek(start)
    pages = file.read_buffer(size_bytes)
    return pages if pages.size == size_bytes else None
