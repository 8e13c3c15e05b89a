"""Compressing a whole file as it is written, for formats that do not compress by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["check_compression", "compressed", "compression_suffix"]

_SUFFIXES = {None: "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


def check_compression(compression: str | None) -> None:
    """Refuse a compression that is not known.

    Raises
    ------
    PlanError
        Naming those that are.
    """
    if compression not in _SUFFIXES:
        raise PlanError(f"compression={compression!r} must be one of {tuple(_SUFFIXES)}")


def compression_suffix(compression: str | None) -> str:
    """What it adds to a file's name."""
    return _SUFFIXES[compression]


@contextmanager
def compressed(stream: BinaryIO, compression: str | None) -> Iterator[Any]:
    """A stream that compresses into another, which stays open."""
    if compression is None:
        yield stream
        return
    with pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), compression) as inner:
        yield inner
