"""The C decoder as loaded with ctypes, and what its callers share."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.native_libraries import Address, load_library
from windrow.io.parquet.codecs import SystemCodecs

__all__ = ["LIBRARY", "SCRATCH", "read_into", "read_pages"]

# holds a dictionary and a page; writers make both about 1 MiB, sometimes slightly more
_SCRATCH_BYTES = 4 * 2**20

_POINTER, _INT = Address, ctypes.c_int64


_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "windrow_decode_chunks": ([_INT, *[_POINTER] * 3, _INT, _POINTER, _INT, _POINTER], None),
    "windrow_locate_text": (
        [*[_POINTER] * 3, _INT, _POINTER, _INT, _POINTER, _POINTER, _INT, _INT],
        _INT,
    ),
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


def read_pages(file: pa.NativeFile, start: int, size_bytes: int) -> pa.Buffer | None:
    """Read the pages of a chunk; None if the file ends before."""
    file.seek(start)
    pages = file.read_buffer(size_bytes)
    return pages if pages.size == size_bytes else None
