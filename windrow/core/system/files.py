"""Files: descriptors for bytes, reads at an offset, files without a name, links, and folders with a lease."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
# without it, Windows changes line ends and takes Ctrl-Z for the end of a file
_OPEN_FLAGS: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Linux only; without it opening a folder for writing fails with EISDIR
_TMPFILE: int = getattr(os, "O_TMPFILE", 0)
# the system or file system does not support O_TMPFILE
_UNSUPPORTED_ERRNOS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


REMOVES_OPEN_FILES = sys.platform != "win32"
"""Whether a file that is open can be removed or renamed."""


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o777) -> int:
    """`os.open` for bytes, not inherited by other processes."""
    return os.open(path, flags | _OPEN_FLAGS, mode)


def open_nameless(folder: Path, suffix: str) -> int:
    """A descriptor of a new file in a folder that ends with its last user, even by a crash.

    Where it needs a name, if only for a moment, that ends with ``suffix``.
    """
    try:
        return open_file(folder, os.O_RDWR | _TMPFILE, 0o600)
    except OSError as error:
        if not (error.errno in _UNSUPPORTED_ERRNOS or sys.platform == "win32"):
            raise
    path = folder / f"{uuid.uuid4().hex}{suffix}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    if sys.platform == "win32":
        # a file that is open keeps its name, and is removed once it is closed
        return open_file(path, flags | os.O_TEMPORARY, 0o600)
    descriptor = open_file(path, flags, 0o600)
    try:
        os.unlink(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def descriptor_path(process: int, descriptor: int) -> str:
    """A path at which Linux opens a file that another process has open; elsewhere there is none."""
    return f"/proc/{process}/fd/{descriptor}"


# Where a read needs the position of the descriptor, one thread at a time uses it.
POSITIONS = tuple(threading.Lock() for _ in range(64))


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    with POSITIONS[descriptor % len(POSITIONS)]:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)


def _pwrite(descriptor: int, data: Any, offset: int) -> int:
    with POSITIONS[descriptor % len(POSITIONS)]:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)


pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _pread)
pwrite: Callable[[int, Any, int], int] = getattr(os, "pwrite", _pwrite)


def _fill(buffers: Sequence[Any], read: Callable[[int], bytes]) -> int:
    """Read into buffers until one is not filled; returns the bytes read."""
    done = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        data = read(len(view))
        view[: len(data)] = data
        done += len(data)
        if len(data) < len(view):
            break
    return done


def _preadv(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
    place = offset

    def read(size: int) -> bytes:
        nonlocal place
        data = pread(descriptor, size, place)
        place += len(data)
        return data

    return _fill(buffers, read)


def _readv(descriptor: int, buffers: Sequence[Any]) -> int:
    return _fill(buffers, lambda size: os.read(descriptor, size))


preadv: Callable[[int, Sequence[Any], int], int] = getattr(os, "preadv", _preadv)
readv: Callable[[int, Sequence[Any]], int] = getattr(os, "readv", _readv)


def write_link(text: str, path: Path) -> None:
    """Create a symlink to ``text`` or, on Windows, where that needs a privilege, a small file of it."""
    if sys.platform == "win32":
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    else:
        os.symlink(text, path)


def read_link(path: Path) -> str:
    """The text that `write_link` was given."""
    return path.read_text(encoding="utf-8") if sys.platform == "win32" else os.readlink(path)


def remove_leased_folder(path: str | os.PathLike[str], lease: int) -> None:
    """Remove a folder in which this process holds ``lease`` open, and close that; errors are ignored."""
    shutil.rmtree(path, ignore_errors=True)
    os.close(lease)
    if sys.platform == "win32":
        # the lease could not be removed while it was open
        shutil.rmtree(path, ignore_errors=True)


def forward_slashes(path: str) -> str:
    """A local path with forward slashes, which Windows takes too, and without the slash before the drive of a URL.

    >>> forward_slashes("/data/x.parquet")
    '/data/x.parquet'
    """
    if sys.platform == "win32":
        path = path.replace("\\", "/")
        return path[1:] if path[:1] == "/" and path[2:3] == ":" else path
    return path
