"""Helpers that write plain and compressed files, and read all rows of a dataset."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from windrow.dataset.dataset import Dataset

__all__ = ["COMPRESS", "JSON_TEXTS", "all_rows", "write_files"]

# with all that JSON has to escape
JSON_TEXTS = st.text(st.sampled_from('ab,"\\é漢\n{}[]'), max_size=6)


def _through(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()

    return compress


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": _through("zstd"),
    ".lz4": _through("lz4"),
    ".zlib": zlib.compress,
}


def write_files(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def all_rows(ds: Dataset) -> list[dict[str, Any]]:
    """Every row in stored order; checks that the parts of each block make up the block."""
    source: Any = ds._plan.source
    tables = []
    for address in source.addresses(range(len(source.blocks.rows))):
        table = source.reader.read(address)
        assert table.schema.equals(source.schema)
        parts = [part.select(list(range(len(source.schema)))) for part in source.reader.parts(address)]
        joined = pa.concat_tables(parts) if parts else source.schema.empty_table()
        assert joined.equals(table), "parts are not the block"
        tables.append(table)
    return pa.concat_tables(tables).to_pylist() if tables else []
