"""One decoded block as a file: an Arrow IPC stream, and a seal that tells whose it is."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

__all__ = ["estimate_bytes", "read_block", "write_block"]

# magic, the key, bytes before the seal, their checksum
_SEAL = struct.Struct("<8s32sQI")
_MAGIC = b"windrow1"
# What the messages of a batch take beside its values, and those of each column.
_BATCH_BYTES = 4096
_COLUMN_BYTES = 512


def estimate_bytes(tables: Sequence[pa.Table]) -> int:
    """At least what a file of these tables takes."""
    overhead = sum(_BATCH_BYTES + _COLUMN_BYTES * table.num_columns for table in tables)
    return _BATCH_BYTES + overhead + sum(table.nbytes for table in tables)


def write_block(path: Path, tables: Sequence[pa.Table], key: bytes, *, durable: bool) -> int:
    """Write the tables of a block; returns the bytes of the file.

    Parameters
    ----------
    key
        32 bytes that tell the data and the block.
    durable
        Make it outlive a crash of the machine, and let a reader tell that it did.
    """
    with pa.OSFile(str(path), "wb") as sink:
        # a stream, since files cannot hold dictionaries that differ from batch to batch
        with pa.ipc.new_stream(sink, tables[0].schema) as writer:
            for table in tables:
                for batch in table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]:
                    writer.write_batch(batch)
        size = sink.tell()
        sink.flush()
        checksum = _checksum(path) if durable else 0
        sink.write(_SEAL.pack(_MAGIC, key, size, checksum))
    if durable:
        _sync(path)
    return size + _SEAL.size


def read_block(path: Path, key: bytes, *, verify: bool) -> list[pa.Table] | None:
    """Map the tables of a block into memory; None where the file is missing, foreign or damaged.

    Parameters
    ----------
    verify
        Compare the checksum, too.
    """
    try:
        with pa.memory_map(str(path)) as file:
            content = file.read_buffer()
    except FileNotFoundError:
        return None
    size = content.size - _SEAL.size
    if size < 0:
        return None
    body, seal = content.slice(0, size), content.slice(size).to_pybytes()
    checksum = zlib.crc32(body) if verify else _SEAL.unpack(seal)[-1]
    if seal != _SEAL.pack(_MAGIC, key, size, checksum):
        return None
    with pa.ipc.open_stream(body) as reader:
        return [pa.Table.from_batches([batch]) for batch in reader]


def _checksum(path: Path) -> int:
    with pa.memory_map(str(path)) as file:
        return zlib.crc32(file.read_buffer())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
