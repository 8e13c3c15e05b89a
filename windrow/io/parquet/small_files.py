"""Small Parquet files of a block: each is read whole, with one read, and many are decoded as one part.

Opening a small file, parsing its footer and calling the decoder cost more than its bytes. So a file is opened
once, its footer is parsed once in a process (`windrow.io.storage.verified_files`), and one call decodes a column
of all files of a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from windrow.io.formats.whole_file_reader import read_contents
from windrow.io.storage.filesystems import Files
from windrow.io.storage.verified_files import BlockFile, RowGroups, open_bytes

__all__ = ["read_small_files"]


def read_small_files(
    files: Files, part: Sequence[RowGroups]
) -> tuple[pa.Buffer, list[tuple[BlockFile, int]]]:
    """Read whole files: their bytes one after another, and each as a block's file with its offset in them."""
    contents = read_contents(files, part)
    data = pa.py_buffer(contents.data)
    starts = contents.ends[:-1].tolist()
    return data, [
        (open_bytes(files, groups, files.name(groups.path), data.slice(start, groups.size_bytes)), start)
        for groups, start in zip(part, starts, strict=True)
    ]
