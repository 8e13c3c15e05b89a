"""Where files are: paths of every kind become a root, relative paths, and a way to open them.

Listing goes through fsspec for every kind of filesystem. Reading goes the shortest
way there is: a memory map on local disk, Arrow's own input file on a ``pyarrow.fs``
filesystem, and exact byte ranges (no read-ahead) on any other fsspec filesystem.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import pyarrow as pa
import pyarrow.fs as pa_fs

from windrow.core.errors import PlanError, SourceError
from windrow.io.credentials import find_secrets, safe_cause, source_error, without_user

__all__ = ["Connection", "Files", "Paths", "connect", "join_path"]

Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]


@dataclass(frozen=True)
class Files:
    """The files under one root; small and picklable.

    ``filesystem`` is None for local disk, else a ``pyarrow.fs`` or fsspec one. It may
    hold credentials: they travel when it is pickled and appear in no text.
    """

    root: str
    filesystem: Any = field(default=None, repr=False)

    @property
    def local(self) -> bool:
        """True when the files lie on this machine's disk."""
        return self.filesystem is None

    @property
    def url(self) -> str:
        """The root as a user would write it, without credentials."""
        if self.local or isinstance(self.filesystem, pa_fs.FileSystem):
            return self.root
        return without_user(str(self.filesystem.unstrip_protocol(self.root)))

    def path(self, relative: str) -> str:
        """The full path of a file in its filesystem."""
        return join_path(self.root, relative)

    def name(self, relative: str) -> str:
        """The file's path in words, without credentials."""
        return join_path(self.url, relative)

    def open(self, relative: str) -> pa.NativeFile:
        """Open a file for reading at random positions."""
        path = self.path(relative)
        if self.local:
            return pa.memory_map(path) if os.path.getsize(path) else pa.BufferReader(b"")
        if isinstance(self.filesystem, pa_fs.FileSystem):
            return self.filesystem.open_input_file(path)
        return pa.PythonFile(_RangeFile(self.filesystem, path), mode="r")

    def stamp(self, relative: str) -> bytes:
        """Something that changes when a file is written anew, as far as its filesystem tells.

        Raises
        ------
        SourceError
            If the file is not there.
        """
        path = self.path(relative)
        try:
            if self.local:
                stat = os.stat(path)
                return f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns}".encode()
            if isinstance(self.filesystem, pa_fs.FileSystem):
                info = self.filesystem.get_file_info(path)
                if info.type == pa_fs.FileType.NotFound:
                    raise FileNotFoundError(path)
                return f"{info.size} {info.mtime_ns}".encode()
            return str(self.filesystem.ukey(path)).encode()
        except Exception as error:
            remedy = "look whether it is still there, and read the dataset anew"
            raise self.error(self.name(relative), error, remedy) from self.cause(error)

    def error(self, what: str, error: BaseException, remedy: str) -> SourceError:
        """Map an error of a filesystem or of Arrow, with no credentials in it."""
        return source_error(what, error, remedy, self._secrets())

    def cause(self, error: BaseException) -> BaseException | None:
        """The error to raise from; None when its text holds credentials."""
        return safe_cause(error, self._secrets())

    def _secrets(self) -> tuple[str, ...]:
        return find_secrets(getattr(self.filesystem, "storage_options", None))


class _RangeFile(io.RawIOBase):
    """A file read by exact byte ranges, since fsspec's own buffering reads far ahead."""

    def __init__(self, filesystem: Any, path: str) -> None:
        info = filesystem.info(path)
        if info["type"] != "file":
            raise FileNotFoundError(path)
        self._filesystem, self._path, self._at = filesystem, path, 0
        self._size = int(info["size"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        data: bytes = self._filesystem.cat_file(self._path, start=self._at, end=stop)
        self._at += len(data)
        return data


@dataclass(frozen=True)
class Connection:
    """What a user's paths and options name: how to list, how to open, and plain paths."""

    lister: Any
    opener: Any
    paths: tuple[str, ...]
    secrets: tuple[str, ...]


def connect(paths: Paths, filesystem: Any, storage_options: Mapping[str, Any] | None) -> Connection:
    """Find the filesystem that a user's paths and options name.

    Raises
    ------
    PlanError
        If they name none, or more than one.
    SourceError
        If the filesystem cannot be set up.
    """
    names = _path_names(paths)
    if filesystem is not None and storage_options is not None:
        raise PlanError("filesystem= and storage_options= exclude each other: give one of them")
    if filesystem is None:
        return _connect_urls(names, dict(storage_options or {}))
    return _connect_given(names, filesystem)


def _path_names(paths: Paths) -> list[str]:
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    try:
        names = [os.fspath(path) for path in given]
    except TypeError as error:
        raise PlanError(f"paths={paths!r}: give a path, or a list of paths") from error
    if not names or not all(isinstance(name, str) and name for name in names):
        raise PlanError(f"paths={paths!r}: give at least one path, as text, and none empty")
    return names


def _connect_urls(names: Sequence[str], options: dict[str, Any]) -> Connection:
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    secrets = find_secrets(options)
    try:
        connected = [url_to_fs(name, **options) for name in names]
    except Exception as error:
        remedy = "check the URL's scheme and storage_options=, and that the scheme's package is installed"
        raise source_error(without_user(names[0]), error, remedy, secrets) from safe_cause(error, secrets)
    lister = connected[0][0]
    for name, (other, _) in zip(names, connected, strict=True):
        if other != lister:
            first, this = without_user(names[0]), without_user(name)
            raise PlanError(f"{first} and {this} are on different filesystems: read them separately")
    opener = None if isinstance(lister, LocalFileSystem) else lister
    return Connection(lister, opener, tuple(path for _, path in connected), secrets)


def _connect_given(names: Sequence[str], filesystem: Any) -> Connection:
    from fsspec import AbstractFileSystem
    from fsspec.implementations.arrow import ArrowFSWrapper
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(filesystem, pa_fs.PyFileSystem) and isinstance(filesystem.handler, pa_fs.FSSpecHandler):
        filesystem = filesystem.handler.fs
    if isinstance(filesystem, (pa_fs.LocalFileSystem, LocalFileSystem)):
        return _connect_urls([name if "://" in name else os.path.abspath(name) for name in names], {})
    if isinstance(filesystem, pa_fs.FileSystem):
        plain = tuple(re.sub(r"^\w+://", "", name).rstrip("/") or name for name in names)
        return Connection(ArrowFSWrapper(filesystem), filesystem, plain, ())
    if isinstance(filesystem, AbstractFileSystem):
        plain = tuple(str(filesystem._strip_protocol(name)) for name in names)
        return Connection(filesystem, filesystem, plain, find_secrets(filesystem.storage_options))
    kind = type(filesystem).__name__
    raise PlanError(f"filesystem= is a {kind}: give an fsspec or a pyarrow.fs filesystem")


def join_path(root: str, relative: str) -> str:
    """A path below a root, which may be empty or ``/``."""
    return f"{root.rstrip('/')}/{relative}" if root else relative
