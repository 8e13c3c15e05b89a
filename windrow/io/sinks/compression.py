"""Compress a file while it is written, for formats without compression of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["check_compression", "compressed", "compression_suffix"]

_SUFFIXES = {None: "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


def check_compression(compression: str | None) -> None:
    """Raise for an unknown compression.

    Raises
    ------
    PlanError
        Naming the known ones.
    """
    if compression not in _SUFFIXES:
        raise PlanError(f"compression={compression!r} must be one of {tuple(_SUFFIXES)}")


def compression_suffix(compression: str | None) -> str:
    """The suffix that a compression adds to file names."""
    return _SUFFIXES[compression]


@contextmanager
def compressed(stream: BinaryIO, compression: str | None) -> Iterator[Any]:
    """A stream that compresses into another one; the latter stays open."""
    if compression is None:
        yield stream
        return
    with pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), compression) as inner:
        yield inner
