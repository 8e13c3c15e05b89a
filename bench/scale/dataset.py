"""A synthetic dataset that consists of a manifest only."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.hive_partitions import find_partitions
from windrow.io.catalog.manifest import Manifest, narrowed
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.storage.filesystems import Files

__all__ = ["COLUMNS", "ENCODED_SHARE", "make_source"]

# number of columns of `bench.data.dlrm`, and its encoded size in Parquet before compression over its decoded size
COLUMNS = 21
ENCODED_SHARE = 0.457
# packed width of each column, from the footers of that data; the key of a large dataset needs all 8 bytes
_WORD_BYTES = (8, 2, 1, 1, 1, 1, 2, 1, 1, 1, 2, 2, 4, 4, 2, 4, 4, 4, 1, 1, 8)
_GROUPS_PER_FILE = 10
_SPREAD = 0.1


def make_source(
    row_groups: int, group_bytes: int, block_bytes: int = 64 * 2**20, *, packs: bool = True
) -> FileSource:
    """Make files of 8-byte columns whose row groups have about the same size, within 10 %.

    ``packs``: the column statistics allow most values to be packed into fewer bytes.
    """
    draws = np.random.Philox(key=1).random_raw(row_groups) / 2.0**64
    rows = (group_bytes / (8 * COLUMNS) * (1 + _SPREAD * (2 * draws - 1))).astype(np.int64)
    files = -(-row_groups // _GROUPS_PER_FILE)
    schema = pa.schema([(f"column{number}", pa.int64()) for number in range(COLUMNS)])
    names = [f"part-{number:07d}.parquet" for number in range(files)]
    manifest = Manifest(
        root="bucket/train",
        schema=schema,
        paths=pa.array(names, pa.large_string()),
        file_bytes=np.full(files, group_bytes * _GROUPS_PER_FILE, np.int64),
        footer_hashes=np.zeros((files, 16), np.uint8),
        row_group_ends=np.minimum(np.arange(1, files + 1) * _GROUPS_PER_FILE, row_groups),
        rows=narrowed(rows),
        encoded_bytes=narrowed((rows * (8 * COLUMNS * ENCODED_SHARE)).astype(np.int64)),
        variable={},
        null_counts=dict.fromkeys(schema.names, 0),
        ranges=dict(zip(schema.names, map(_range, _WORD_BYTES), strict=True)) if packs else {},
    )
    partitions = find_partitions([], schema.names)
    columns = (schema, schema, None)
    return FileSource(
        Files("bucket/train"), manifest, *columns, partitions, None, block_bytes, ParquetFormat()
    )


def _range(word_bytes: int) -> tuple[int, int]:
    """Minimum and maximum of values that need ``word_bytes`` bytes."""
    return (0, 2 ** (8 * word_bytes) - 1) if word_bytes < 8 else (-(2**63), 2**63 - 1)
