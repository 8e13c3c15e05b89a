"""The C decoder as loaded with ctypes, the codecs that it decompresses, and what its callers share."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.native_libraries import Address, load_library
from windrow.core.system.files import preadv

UNCOMPRESSED = "UNCOMPRESSED"


def _load(*names: str) -> Any:
    """The first of some libraries that is installed, else None."""
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _find(library: Any, name: str, arguments: list[Any], result: Any) -> Any:
    function = getattr(library, name, None)
    if function is not None:
        function.argtypes, function.restype = arguments, result
    return function


_ZSTD = _load("libzstd.so.1", "libzstd.1.dylib")
_LZ4 = _load("liblz4.so.1", "liblz4.1.dylib")
_zstd_create = _find(_ZSTD, "ZSTD_createDCtx", [], ctypes.c_void_p)
_zstd_free = _find(_ZSTD, "ZSTD_freeDCtx", [ctypes.c_void_p], ctypes.c_size_t)
# called from C
_zstd_decompress = _find(_ZSTD, "ZSTD_decompressDCtx", [], None)
_lz4_decompress = _find(_LZ4, "LZ4_decompress_safe", [], None)
_HAS_ZSTD = None not in (_zstd_create, _zstd_free, _zstd_decompress)


@dataclass(frozen=True)
class Codec:
    """A codec: its number in C, and the ratio that pages rarely exceed; Arrow reads those that do."""

    number: int
    max_ratio: int


def _find_codecs() -> dict[str, Codec]:
    # Snappy encodes 64 bytes in at least 3, LZ4 255 in at least 1; the ratio of zstd has no limit
    found = {UNCOMPRESSED: Codec(0, 1), "SNAPPY": Codec(1, 24)}
    if _HAS_ZSTD:
        found["ZSTD"] = Codec(2, 256)
    if _lz4_decompress is not None:
        # the older framing has the same name in footers, and is declined in C
        found["LZ4"] = Codec(3, 256)
    return found


CODECS = _find_codecs()
"""By their names in footers, those that can be decompressed here."""


def _address(function: Any) -> int:
    return 0 if function is None else int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class SystemCodecs:
    """What C calls ``system_codecs``, for one thread; frees what zstd keeps from page to page."""

    def __init__(self) -> None:
        self._context = int(_zstd_create() or 0) if _HAS_ZSTD else 0
        addresses = [_address(_zstd_decompress), self._context, _address(_lz4_decompress)]
        self.addresses: NDArray[np.int64] = np.array(addresses, np.int64)

    # an argument: as the interpreter exits, the module's names can be gone before the last thread's codecs
    def __del__(self, free: Any = _zstd_free) -> None:
        if self._context:
            free(self._context)


# holds a dictionary and a page; writers make both about 1 MiB, sometimes slightly more
_SCRATCH_BYTES = 4 * 2**20

# larger than any file
_FILE_BITS = 48

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


class JoinedFiles:
    """Local files, read as if they lay one behind another with gaps between them.

    Each comes with a context that maps the errors of reading it.
    """

    def __init__(
        self, files: Sequence[tuple[pa.NativeFile, Callable[[], AbstractContextManager[None]]]]
    ) -> None:
        self._files = files
        self._at = self._offset = 0

    @staticmethod
    def start(number: int) -> int:
        """Where a file begins."""
        return number << _FILE_BITS

    def seek(self, position: int) -> None:
        self._at, self._offset = position >> _FILE_BITS, position & ((1 << _FILE_BITS) - 1)

    def read_buffer(self, size_bytes: int) -> pa.Buffer:
        """Read from the position on, without copies; less where that file ends."""
        file, mapped_errors = self._files[self._at]
        try:
            file.seek(self._offset)
            return file.read_buffer(size_bytes)
        except Exception:
            with mapped_errors():
                raise

    def read_into(self, start: int, out: NDArray[np.uint8]) -> bool:
        """The same as `read_into`, of the file that has this position."""
        self.seek(start)
        file, mapped_errors = self._files[self._at]
        with mapped_errors():
            return read_into(file, self._offset, out)


ChunkFile: TypeAlias = pa.NativeFile | JoinedFiles


def read_into(file: ChunkFile, start: int, out: NDArray[np.uint8]) -> bool:
    """Read bytes of a local file into memory, which costs less than mapping and copying them; False if it cannot."""
    if isinstance(file, JoinedFiles):
        return file.read_into(start, out)
    if not isinstance(file, pa.MemoryMappedFile):
        return False
    return preadv(file.fileno(), [out.data], start) == len(out)


def read_chunks(file: ChunkFile, chunks: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[pa.Buffer]]:
    """Read the pages of chunks: (chunks, 2) the offset of each, and its bytes.

    Returns (chunks, 2) the address and bytes of each, zeros if the file ends before, and the buffers that hold them.
    Adjacent ones of a file that is mapped are read at once: a read takes some microseconds and gives the GIL away, and
    files of a thousand columns have as many chunks.
    """
    buffers = list[pa.Buffer]()
    if not len(chunks):
        return np.zeros_like(chunks), buffers
    starts, sizes = chunks[:, 0], chunks[:, 1]
    order = None
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, sizes = starts[order], sizes[order]
    ends = starts + sizes
    begins = np.ones(len(chunks), np.bool_)
    if not isinstance(file, pa.PythonFile):
        np.not_equal(starts[1:], ends[:-1], out=begins[1:])
    firsts = begins.nonzero()[0]
    counts = np.diff(firsts, append=len(chunks))
    for start, stop in zip(starts[firsts].tolist(), ends[firsts + counts - 1].tolist(), strict=True):
        file.seek(start)
        buffers.append(file.read_buffer(stop - start))
    of_reads = np.array([(buffer.address, buffer.size) for buffer in buffers], np.int64)
    addresses, held = (of_reads if len(firsts) == 1 else of_reads.repeat(counts, axis=0)).T
    offsets = starts - starts[firsts].repeat(counts)
    whole = offsets + sizes <= held
    places = np.stack([addresses + offsets, sizes], axis=1) * whole[:, None]
    if order is not None:
        places[order] = places.copy()
    return places, buffers


def read_pages(file: ChunkFile, start: int, size_bytes: int) -> pa.Buffer | None:
    """Read the pages of a chunk; None if the file ends before."""
    file.seek(start)
    pages = file.read_buffer(size_bytes)
    return pages if pages.size == size_bytes else None
