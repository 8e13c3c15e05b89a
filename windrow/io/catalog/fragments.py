"""Metadata of a fragment (a file) that planning needs, in a form common to all formats."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.io.storage.file_versions import Version

__all__ = [
    "END_BYTES",
    "HASH_BYTES",
    "Fragment",
    "FragmentFacts",
    "digest_briefly",
    "digest_ends",
    "digest_parts",
    "digest_schema",
]

HASH_BYTES = 16

END_BYTES = 16 * 1024
# limit for rows or bytes of a row group, so that sums fit into 64 bits
_LARGEST = 2**48


@dataclass(frozen=True)
class FragmentFacts:
    """The content of a file, as far as its metadata states it; rows and bytes are by row group."""

    schema: pa.Schema
    rows: list[int]  # an estimate of 1 or more if the format does not store them
    encoded_bytes: list[int]  # uncompressed bytes of all columns
    variable: Mapping[str, tuple[list[int], list[int]]]  # variable-width columns: encoded and decoded bytes
    nulls: Mapping[str, int | None]  # by column; None where unknown
    # minimum and maximum of integer and time columns, where statistics of all row groups state them
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # stored bytes by codec, such as "zstd", of the first row group, where the metadata names codecs
    codecs: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        """Whether all sizes are non-negative and small enough for a real file."""
        stated = (
            self.rows,
            self.encoded_bytes,
            *(sizes for pair in self.variable.values() for sizes in pair),
        )
        return all(min(sizes, default=0) >= 0 and max(sizes, default=0) <= _LARGEST for sizes in stated)


@dataclass(frozen=True)
class Fragment:
    """A file when its metadata was read: its version, a digest of its content, and its facts."""

    version: Version
    digest: bytes
    facts: FragmentFacts


def digest_parts(parts: Iterable[bytes]) -> str:
    """Digest byte strings with their lengths, so that no two lists of them give the same input."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def digest_schema(schema: pa.Schema, options: str = "") -> str:
    """A short digest of a schema's names and types, for checkpoints."""
    return digest_briefly(("\n".join(f"{field.name}: {field.type}" for field in schema) + options).encode())


def digest_briefly(content: bytes) -> str:
    """A digest of 16 digits, for checkpoints."""
    return hashlib.sha256(content).hexdigest()[:16]


def digest_ends(read_range: Callable[[int, int], Any], size_bytes: int) -> bytes:
    """Digest a file's size and its first and last 16 KiB, for formats without a footer."""
    digest = hashlib.sha256(size_bytes.to_bytes(8, "little"))
    ends = [(0, END_BYTES), (size_bytes - END_BYTES, size_bytes)]
    for start, stop in ends if size_bytes > 2 * END_BYTES else [(0, size_bytes)]:
        if stop > start:
            digest.update(bytes(read_range(start, stop)))
    return digest.digest()[:HASH_BYTES]
