"""What planning keeps of a fragment, whatever its format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.io.versions import Version

__all__ = ["HASH_BYTES", "Fragment", "FragmentFacts", "digest_ends"]

HASH_BYTES = 16

_END_BYTES = 16 * 1024


@dataclass(frozen=True)
class FragmentFacts:
    """What a file holds, as far as looking at it tells.

    Attributes
    ----------
    schema
        Its columns.
    rows
        (row groups,) rows; where the format cannot tell, an estimate of 1 or more.
    encoded_bytes
        (row groups,) encoded, uncompressed bytes of all columns.
    variable
        For each column whose values differ in width, each row group's encoded and
        estimated decoded bytes.
    nulls
        Nulls by column; None where nothing tells.
    """

    schema: pa.Schema
    rows: list[int]
    encoded_bytes: list[int]
    variable: Mapping[str, tuple[list[int], list[int]]]
    nulls: Mapping[str, int | None]


@dataclass(frozen=True)
class Fragment:
    """A file as it was when it was looked at: its version, a digest of content, and what it holds."""

    version: Version
    digest: bytes
    facts: FragmentFacts


def digest_ends(read_range: Callable[[int, int], Any], size_bytes: int) -> bytes:
    """A digest of a file's size and of both its ends, for formats without a footer that tells more."""
    digest = hashlib.sha256(size_bytes.to_bytes(8, "little"))
    if size_bytes <= 2 * _END_BYTES:
        spans = [(0, size_bytes)] if size_bytes else []
    else:
        spans = [(0, _END_BYTES), (size_bytes - _END_BYTES, size_bytes)]
    for start, stop in spans:
        digest.update(bytes(read_range(start, stop)))
    return digest.digest()[:HASH_BYTES]
