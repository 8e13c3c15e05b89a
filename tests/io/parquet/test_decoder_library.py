"""What the C decoder is given to read: the bytes of chunks, adjacent ones at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.io.parquet.decoder_library import read_chunks

CONTENT = bytes(range(200))


@pytest.mark.parametrize("held", ["mapped", "in memory", "elsewhere"])
@pytest.mark.parametrize(
    ("chunks", "buffers"),
    [
        ([(10, 5), (15, 20), (35, 1)], 1),
        # in another order, with a gap, and one of them twice
        ([(40, 10), (10, 20), (30, 10), (60, 5), (60, 5)], 3),
        # the last ones are beyond the end
        ([(180, 10), (190, 10), (200, 1)], 1),
        ([(180, 10), (190, 11)], 1),
        ([], 0),
    ],
)
def test_each_chunk_has_its_bytes(
    tmp_path: Path, held: str, chunks: list[tuple[int, int]], buffers: int
) -> None:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    opened: dict[str, Callable[[], Any]] = {
        "mapped": lambda: pa.memory_map(str(path)),
        "in memory": lambda: pa.BufferReader(CONTENT),
        "elsewhere": lambda: pa.PythonFile(path.open("rb"), mode="r"),
    }
    with opened[held]() as file:
        found, read = read_chunks(file, np.array(chunks, np.int64).reshape(-1, 2))
        assert len(read) == (len(chunks) if held == "elsewhere" else buffers)
        for (start, size), (address, found_size) in zip(chunks, found.tolist(), strict=True):
            if start + size > len(CONTENT):
                assert (address, found_size) == (0, 0)
            else:
                assert ctypes.string_at(address, found_size) == CONTENT[start : start + size]
        # a buffer of a map must not outlive it
        del read
