"""The codecs of pages that the C decoder decompresses: Snappy itself, zstd and LZ4 by the system's libraries."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CODECS", "UNCOMPRESSED", "Codec", "SystemCodecs"]

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
_POINTER = ctypes.c_void_p
_zstd_create = _find(_ZSTD, "ZSTD_createDCtx", [], _POINTER)
_zstd_free = _find(_ZSTD, "ZSTD_freeDCtx", [_POINTER], ctypes.c_size_t)
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
    return 0 if function is None else int(ctypes.cast(function, _POINTER).value or 0)


class SystemCodecs:
    """What C calls ``system_codecs``, for one thread; frees what zstd keeps from page to page."""

    def __init__(self) -> None:
        self._context = int(_zstd_create() or 0) if _HAS_ZSTD else 0
        addresses = [_address(_zstd_decompress), self._context, _address(_lz4_decompress)]
        self.addresses: NDArray[np.int64] = np.array(addresses, np.int64)

    def __del__(self) -> None:
        if self._context:
            _zstd_free(self._context)
