"""Arbitrary files: one row per file, its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.io.formats.format import Survey
from windrow.io.formats.whole_file_reader import Contents, WholeFileFormat
from windrow.io.storage.filesystems import Files

__all__ = ["BinaryFormat"]

_COLUMN = "bytes"
# a row has a cost even if its file is empty
_MIN_BYTES = 64


@dataclass(frozen=True)
class BinaryFormat(WholeFileFormat):
    """One row per file: its bytes. No file is opened before it is read."""

    name: str = "binary"
    options: str = ""

    def survey(self, files: Files, paths: Sequence[str], file_bytes: NDArray[np.int64]) -> Survey:
        """Derive everything from the file sizes."""
        schema = pa.schema([pa.field(_COLUMN, pa.large_binary())])
        return Survey(schema, file_bytes, {_COLUMN: file_bytes})

    def estimate_row_bytes(self, size_bytes: int) -> int:
        """Estimate the in-memory bytes of the row of a file of this size."""
        return size_bytes + _MIN_BYTES

    def columns(self, files: Files, contents: Contents, names: Sequence[str]) -> Mapping[str, pa.Array]:
        """(files,) the bytes, referencing the buffer they were read into."""
        return {_COLUMN: binary_column(contents.ends, contents.data)}


def binary_column(ends: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """(len(ends) - 1,) slices of a buffer as a column, without a copy."""
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, buffers, null_count=0)
