"""What planning keeps of a fragment, whatever its format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.io.storage.file_versions import Version

__all__ = ["END_BYTES", "HASH_BYTES", "Fragment", "FragmentFacts", "digest_ends", "fetch_ends"]

HASH_BYTES = 16

END_BYTES = 16 * 1024
# rows or bytes of a row group; sums of them fit into 64 bits
_LARGEST = 2**48


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
    ranges
        The least and the largest word of columns of whole numbers and times, where that is told of all.
    """

    schema: pa.Schema
    rows: list[int]
    encoded_bytes: list[int]
    variable: Mapping[str, tuple[list[int], list[int]]]
    nulls: Mapping[str, int | None]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_possible(self) -> bool:
        """Whether a file can hold so much, and not less than nothing."""
        stated = (
            self.rows,
            self.encoded_bytes,
            *(sizes for pair in self.variable.values() for sizes in pair),
        )
        return all(min(sizes, default=0) >= 0 and max(sizes, default=0) <= _LARGEST for sizes in stated)


@dataclass(frozen=True)
class Fragment:
    """A file as it was when it was looked at: its version, a digest of content, and what it holds."""

    version: Version
    digest: bytes
    facts: FragmentFacts


def digest_ends(read_range: Callable[[int, int], Any], size_bytes: int) -> bytes:
    """A digest of a file's size and of both its ends, for formats without a footer that tells more."""
    digest = hashlib.sha256(size_bytes.to_bytes(8, "little"))
    for start, stop in _ends(size_bytes):
        digest.update(bytes(read_range(start, stop)))
    return digest.digest()[:HASH_BYTES]


def fetch_ends(fetch: Callable[[Sequence[tuple[int, int]]], None], size_bytes: int) -> None:
    """Fetch ahead what `digest_ends` reads."""
    fetch(_ends(size_bytes))


def _ends(size_bytes: int) -> list[tuple[int, int]]:
    if size_bytes <= 2 * END_BYTES:
        return [(0, size_bytes)] if size_bytes else []
    return [(0, END_BYTES), (size_bytes - END_BYTES, size_bytes)]
