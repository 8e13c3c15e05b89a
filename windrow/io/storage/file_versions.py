"""What a store tells of a file: its size, and a stamp that changes when it is written anew."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow.fs as pa_fs

__all__ = ["Version", "look_at_arrow", "look_at_fsspec", "look_at_local", "told_by_listing", "told_by_stat"]

# What stores call it; lower case. Names that also change with access or storage class are left out.
_TELLING = re.compile(
    r"content[-_]md5|created|etag|generation|last[-_]?modified|md5(hash)?|mtime|modified|updated|version_?id"
)


@dataclass(frozen=True)
class Version:
    """A file as it is now.

    Attributes
    ----------
    size_bytes
        Its size.
    stamp
        64 bits of a hash of what tells one version from another; never 0.
    """

    size_bytes: int
    stamp: int


def look_at_local(path: str) -> Version:
    """Look at a file on a disk of this machine: inode, size and time of its last change."""
    return told_by_stat(os.stat(path))


def told_by_stat(stat: os.stat_result) -> Version:
    """What `look_at_local` tells of a file of which this is known."""
    return _version(stat.st_size, f"{stat.st_ino} {stat.st_mtime_ns}")


def look_at_arrow(filesystem: Any, path: str) -> Version:
    """Look at a file of a ``pyarrow.fs`` filesystem, with one request where that tells an ETag."""
    with filesystem.open_input_file(path) as file:
        size, told = file.size(), file.metadata() or {}
    reporting = {_text(key).lower(): _text(value) for key, value in told.items()}
    texts = _texts(reporting)
    if not texts:
        info = filesystem.get_file_info(path)
        if info.type == pa_fs.FileType.NotFound:
            raise FileNotFoundError(path)
        texts = [str(info.mtime_ns)]
    return _version(size, " ".join(texts))


def look_at_fsspec(filesystem: Any, path: str) -> Version:
    """Look at a file of an fsspec filesystem as it is now, not as it was when it was listed."""
    filesystem.invalidate_cache(filesystem._parent(path))
    info = filesystem.info(path)
    if info["type"] != "file":
        raise FileNotFoundError(path)
    return told_by_listing(info)


def told_by_listing(info: Mapping[str, Any]) -> Version:
    """What fsspec tells of a file, be it in a listing or of the file alone.

    A listing may tell less: whoever takes it for a look makes sure first that both are the same.
    """
    reporting = {key.lower(): value for key, value in info.items() if value is not None}
    return _version(int(info["size"]), " ".join(_texts(reporting)))


def _texts(reporting: Mapping[str, Any]) -> list[str]:
    # listings tell some times as numbers
    found = {
        key: value.timestamp() if isinstance(value, datetime) else value
        for key, value in sorted(reporting.items())
        if _TELLING.fullmatch(key)
    }
    if found.get("etag"):
        # It tells enough. S3 lists times to the millisecond where it tells them to the second of
        # an object alone, lists no versions, and some servers leave the quotes away.
        found = {
            key: int(value) if isinstance(value, float) else value
            for key, value in found.items()
            if "version" not in key
        }
        found["etag"] = str(found["etag"]).strip('"')
    return [f"{key}={value}" for key, value in found.items()]


def _version(size_bytes: int, reporting: str) -> Version:
    digest = hashlib.sha256(f"{size_bytes} {reporting}".encode()).digest()
    return Version(size_bytes, int.from_bytes(digest[:8], "little") or 1)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
