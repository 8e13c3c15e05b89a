"""Writes shards of MDS as MosaicML's MDSWriter does, for values that are bytes already; and encodes values."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tests.io.formats.lines_of import COMPRESS

__all__ = ["SUFFIXES", "encode", "encode_array", "encode_list", "write_mds"]

_SIZES = {"int": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4}
_SIZES |= {"uint64": 8, "float16": 2, "float32": 4, "float64": 8}
_DTYPES = {"uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33}
_DTYPES |= {"float32": 34, "uint64": 64, "int64": 65, "float64": 66}


def _snappy(data: bytes) -> bytes:
    return bytes(pa.compress(data, "snappy", asbytes=True))


def _brotli(data: bytes) -> bytes:
    return bytes(pa.compress(data, "brotli", asbytes=True))


SUFFIXES: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zstd": COMPRESS[".zst"],
    "snappy": _snappy,
    "br": _brotli,
}


def encode(encoding: str, value: Any) -> bytes:
    """The bytes of a value of a scalar, of text, of an array or of bytes."""
    if encoding in _SIZES:
        return np.dtype("int64" if encoding == "int" else encoding).type(value).tobytes()
    if encoding.startswith("ndarray"):
        return encode_array(encoding, value)
    if encoding in ("list[png]", "jpeg_array"):
        return encode_list(value, bytes(4) if encoding == "list[png]" else b"")
    if encoding == "json":
        return json.dumps(value).encode()
    return value if isinstance(value, bytes) else str(value).encode()


def encode_array(encoding: str, array: NDArray[Any]) -> bytes:
    """An array, behind its dtype and its shape where the encoding states none."""
    _, *stated = encoding.split(":")
    dtype = b"" if stated else bytes([_DTYPES[array.dtype.name]])
    width = 0 if max(array.shape) < 256 else 1
    shape = bytes([array.ndim << 2 | width]) + np.array(array.shape, f"<u{1 << width}").tobytes()
    return dtype + (b"" if len(stated) > 1 else shape) + array.tobytes()


def encode_list(values: Sequence[bytes], head: bytes) -> bytes:
    """The number of values, their sizes, and they themselves."""
    sizes = np.array([len(value) for value in values], "<u4").tobytes()
    return head + struct.pack("<I", len(values)) + sizes + b"".join(values)


def write_mds(
    folder: Path,
    columns: Mapping[str, str],
    shards: Sequence[Sequence[Mapping[str, bytes]]],
    compression: str | None = None,
) -> Path:
    """Write shards of samples, which are the bytes of their values by column, and an index.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    encodings = [columns[name] for name in names]
    sizes = [_find_size(encoding) for encoding in encodings]
    config = {"version": 2, "format": "mds", "compression": compression, "hashes": [], "size_limit": None}
    config |= {"column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    stated = []
    for number, samples in enumerate(shards):
        raw = _encode_shard([_encode_sample(sample, names, sizes) for sample in samples], config)
        basename = f"shard.{number:05}.mds"
        raw_data = {"basename": basename, "bytes": len(raw), "hashes": {}}
        stored, zip_data = SUFFIXES[compression](raw), None
        if compression:
            basename = f"{basename}.{compression}"
            zip_data = {"basename": basename, "bytes": len(stored), "hashes": {}}
        (folder / basename).write_bytes(stored)
        stated.append({**config, "samples": len(samples), "raw_data": raw_data, "zip_data": zip_data})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": stated}))
    return folder


def _find_size(encoding: str) -> int | None:
    parts = encoding.split(":")
    if len(parts) == 3:
        return int(np.prod([int(size) for size in parts[2].split(",")])) * np.dtype(parts[1]).itemsize
    return _SIZES.get(encoding)


def _encode_sample(sample: Mapping[str, bytes], names: Sequence[str], sizes: Sequence[int | None]) -> bytes:
    stated = [len(sample[name]) for name, size in zip(names, sizes, strict=True) if size is None]
    return np.array(stated, "<u4").tobytes() + b"".join(sample[name] for name in names)


def _encode_shard(samples: Sequence[bytes], config: Mapping[str, Any]) -> bytes:
    head = json.dumps(config, sort_keys=True).encode()
    offsets = np.cumsum([0, *map(len, samples)]) + 4 * (len(samples) + 2) + len(head)
    return struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + head + b"".join(samples)
