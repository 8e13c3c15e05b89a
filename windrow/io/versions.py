"""What a store tells of a file: its size, and a stamp that changes when it is written anew."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pa_fs

__all__ = ["Version", "look_at_arrow", "look_at_fsspec", "look_at_local"]

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
    stat = os.stat(path)
    return _version(stat.st_size, f"{stat.st_ino} {stat.st_mtime_ns}")


def look_at_arrow(filesystem: Any, path: str) -> Version:
    """Look at a file of a ``pyarrow.fs`` filesystem, with one request where that tells an ETag."""
    with filesystem.open_input_file(path) as file:
        size, told = file.size(), file.metadata() or {}
    telling = {_text(key).lower(): _text(value) for key, value in told.items()}
    texts = _texts(telling)
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
    telling = {key.lower(): value for key, value in info.items() if value is not None}
    texts = _texts(telling)
    return _version(int(info["size"]), " ".join(texts))


def _texts(telling: Mapping[str, Any]) -> list[str]:
    return [f"{key}={telling[key]}" for key in sorted(telling) if _TELLING.fullmatch(key)]


def _version(size_bytes: int, telling: str) -> Version:
    digest = hashlib.sha256(f"{size_bytes} {telling}".encode()).digest()
    return Version(size_bytes, int.from_bytes(digest[:8], "little") or 1)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
