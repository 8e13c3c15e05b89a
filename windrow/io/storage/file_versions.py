"""Versions of files: size and a stamp (hash of ETag or mtime) that changes on a rewrite; blocks of a version."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow.fs as pa_fs

from windrow.core.errors import SourceError
from windrow.io.storage.hub import hub_etag

# Lower-case metadata keys that identify a version. Keys that also change with access or storage class are left out.
_VERSION_KEYS = re.compile(
    r"content[-_]md5|created|etag|generation|last[-_]?modified|md5(hash)?|modification[-_]?time|mtime|modified|updated|version_?id"
)


@dataclass(frozen=True)
class Version:
    """One version of a file."""

    size_bytes: int
    stamp: int  # 64-bit hash of the metadata that identifies the version; never 0


def read_local_version(path: str) -> Version:
    """The version of a file on local disk, from its inode, size and mtime."""
    return version_from_stat(os.stat(path))


def version_from_stat(stat: os.stat_result) -> Version:
    """Return the version that `read_local_version` would, from a stat result."""
    return _version(stat.st_size, f"{stat.st_ino} {stat.st_mtime_ns}")


def read_arrow_version(filesystem: Any, path: str) -> Version:
    """The version of a file in a ``pyarrow.fs`` filesystem; takes one request where metadata has an ETag."""
    with filesystem.open_input_file(path) as file:
        size, raw = file.size(), file.metadata() or {}
    metadata = {_to_text(key).lower(): _to_text(value) for key, value in raw.items()}
    texts = _version_texts(metadata)
    if not texts:
        info = filesystem.get_file_info(path)
        if info.type == pa_fs.FileType.NotFound:
            raise FileNotFoundError(path)
        texts = [str(info.mtime_ns)]
    return _version(size, " ".join(texts))


def read_fsspec_version(filesystem: Any, path: str) -> Version:
    """The current version of a file in an fsspec filesystem, bypassing its listing cache."""
    filesystem.invalidate_cache(filesystem._parent(path))
    info = filesystem.info(path)
    if info["type"] != "file":
        raise FileNotFoundError(path)
    return version_from_listing(info)


def read_hub_version(filesystem: Any, path: str) -> Version:
    """The version of a file in a repository of the Hugging Face Hub: its size and the hash of its content."""
    return version_from_listing(filesystem.info(path))


def version_from_listing(info: Mapping[str, Any]) -> Version:
    """A file's version from an fsspec info, of a listing or of the file alone.

    A listing can contain less metadata, so callers that rely on one must first check that both give the same
    version.
    """
    metadata = {key.lower(): value for key, value in info.items() if value is not None}
    if "blob_id" in metadata:
        metadata["etag"] = hub_etag(metadata)
    return _version(int(info["size"]), " ".join(_version_texts(metadata)))


def _version_texts(metadata: Mapping[str, Any]) -> list[str]:
    # listings report some times as numbers
    found = {
        key: value.timestamp() if isinstance(value, datetime) else value
        for key, value in sorted(metadata.items())
        if _VERSION_KEYS.fullmatch(key)
    }
    if found.get("etag") and not str(found["etag"]).startswith("W/"):
        # It alone tells a version, unless it is weak. Listings of S3 have times in milliseconds and single objects in
        # seconds, which some servers take from other clocks, and no version ids; some omit the quotes.
        return [f"etag={str(found['etag']).strip(chr(34))}"]
    return [f"{key}={value}" for key, value in found.items()]


def _version(size_bytes: int, metadata: str) -> Version:
    digest = hashlib.sha256(f"{size_bytes} {metadata}".encode()).digest()
    return Version(size_bytes, int.from_bytes(digest[:8], "little") or 1)


def _to_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class RowGroups:
    """The locator of a block: row groups ``start`` to ``stop`` (exclusive) of one file as it was listed.

    ``stamp`` identifies the file's version at listing time; 0 if unknown. It depends on when the file was
    written, not on its content, so equality ignores it.
    """

    path: str
    size_bytes: int
    footer_hash: bytes
    start: int
    stop: int
    stamp: int = field(default=0, compare=False)
    # of a single row group, the rows from ``first_row`` to ``stop_row`` alone; -1: to its end
    first_row: int = 0
    stop_row: int = -1

    @property
    def is_cut(self) -> bool:
        """Whether the block is a part of a row group."""
        return self.first_row > 0 or self.stop_row >= 0

    def locate(self, name: str) -> str:
        """Name the rows, given the name of their file."""
        if self.stop - self.start > 1:
            return f"{name}, row groups {self.start}-{self.stop - 1}"
        if self.is_cut:
            return f"{name}, row group {self.start}, rows {self.first_row}-{self.stop_row - 1}"
        return f"{name}, row group {self.start}"


def changed(origin: str, groups: RowGroups, now: Version, how: str = "rewritten since") -> SourceError:
    """Return the error for a file that has been replaced since it was listed."""
    if groups.size_bytes != now.size_bytes:
        how = f"it had {groups.size_bytes} bytes, now {now.size_bytes}"
    return SourceError(
        f"{origin}: the file has changed since it was listed ({how}); list the dataset again "
        "(if it has a saved manifest, save that again), or restore the file"
    )
