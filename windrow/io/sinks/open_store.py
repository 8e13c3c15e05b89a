"""Open the store that a user's path names: the local disk, a filesystem of pyarrow.fs, or one of fsspec.

Object storage (S3, GCS, Azure ...) exposes an object only once its upload is complete, so files are
uploaded under their final names. Other filesystems (SFTP, SMB, HDFS, memory ...) get a hidden temporary
file and a rename, which is as atomic as theirs.
"""

from __future__ import annotations

import errno
import os
import posixpath
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from windrow.core.errors import PlanError, WindrowError
from windrow.io.sinks.store import Fill, LocalStore, Store, temporary_name
from windrow.io.storage.credentials import filesystem_secrets, redact, safe_cause, source_error, without_user
from windrow.io.storage.filesystems import connect, join_path
from windrow.io.storage.retries import GaveUpError, Retries

_ARROW_OBJECT_STORES = {"s3", "gcs", "abfs"}
_FSSPEC_OBJECT_STORES = {
    "s3",
    "s3a",
    "gs",
    "gcs",
    "abfs",
    "abfss",
    "az",
    "adl",
    "oss",
    "oci",
    "obs",
    "cos",
    "r2",
}
_REMOVING_THREADS = 16
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True)
class _RemoteStore(ABC):
    """A directory of a filesystem; see ``windrow.io.sinks.store.Store``."""

    root: str
    filesystem: Any = field(repr=False)
    retries: Retries = field(default=Retries(), repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        return filesystem_secrets(self.filesystem)

    @property
    def is_root(self) -> bool:
        root = self.root.strip("/")
        return not root or (self._is_object_store and "/" not in root)

    def list_files(self) -> list[str]:
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        return self.retries.call(self._find)

    def put(self, relative: str, fill: Fill) -> None:
        path = join_path(self.root, relative)
        folder, name = posixpath.split(path)
        # unique per attempt: Ray can run a task twice, so two attempts can write the same file concurrently
        temporary = join_path(folder, temporary_name(name, os.urandom(4).hex()))
        with _spooled(fill) as local:
            if self._is_object_store:
                self.retries.call(lambda: self._upload(local, path))
            else:
                self.retries.call(lambda: self._replace(local, temporary, path))

    def get(self, relative: str) -> bytes:
        path = join_path(self.root, relative)
        return self.retries.call(lambda: self._download(path))

    def remove(self, relatives: Collection[str]) -> None:
        with ThreadPoolExecutor(_REMOVING_THREADS, "windrow-remove") as threads:
            list(threads.map(self._remove, relatives))

    def _remove(self, relative: str) -> None:
        path = join_path(self.root, relative)
        with suppress(FileNotFoundError):
            self.retries.call(lambda: self._delete(path))

    def _replace(self, local: str, temporary: str, path: str) -> None:
        self._make_folder(posixpath.dirname(path))
        self._upload(local, temporary)
        with suppress(FileNotFoundError):
            # some filesystems do not rename onto an existing file; it is this file, of an earlier attempt
            self._delete(path)
        self._move(temporary, path)

    @property
    @abstractmethod
    def _is_object_store(self) -> bool: ...

    @abstractmethod
    def _find(self) -> dict[str, int]: ...

    @abstractmethod
    def _make_folder(self, folder: str) -> None: ...

    @abstractmethod
    def _upload(self, local: str, path: str) -> None: ...

    @abstractmethod
    def _download(self, path: str) -> bytes: ...

    @abstractmethod
    def _delete(self, path: str) -> None: ...

    @abstractmethod
    def _move(self, path: str, target: str) -> None: ...


class ArrowStore(_RemoteStore):
    """A directory of a filesystem of ``pyarrow.fs``."""

    @property
    def url(self) -> str:
        return self.root

    @property
    def _is_object_store(self) -> bool:
        filesystem = self.filesystem
        while isinstance(filesystem, pa_fs.SubTreeFileSystem):
            filesystem = filesystem.base_fs
        return filesystem.type_name in _ARROW_OBJECT_STORES

    def _find(self) -> dict[str, int]:
        found = self.filesystem.get_file_info(
            pa_fs.FileSelector(self.root, recursive=True, allow_not_found=True)
        )
        length = len(self.root.rstrip("/")) + 1
        return {info.path[length:]: info.size for info in found if info.type == pa_fs.FileType.File}

    def _make_folder(self, folder: str) -> None:
        self.filesystem.create_dir(folder, recursive=True)

    def _upload(self, local: str, path: str) -> None:
        with pa.OSFile(local) as file:
            data = file.read_buffer()
        # in one call: closing a stream after an error would complete a partial upload
        with self.filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def _download(self, path: str) -> bytes:
        with self.filesystem.open_input_file(path) as file:
            return bytes(file.read())

    def _delete(self, path: str) -> None:
        self.filesystem.delete_file(path)

    def _move(self, path: str, target: str) -> None:
        self.filesystem.move(path, target)


class FsspecStore(_RemoteStore):
    """A directory of an fsspec filesystem."""

    @property
    def url(self) -> str:
        return without_user(str(self.filesystem.unstrip_protocol(self.root)))

    @property
    def _is_object_store(self) -> bool:
        protocol = self.filesystem.protocol
        return not _FSSPEC_OBJECT_STORES.isdisjoint([protocol] if isinstance(protocol, str) else protocol)

    def _find(self) -> dict[str, int]:
        self.filesystem.invalidate_cache()
        root = self.root.strip("/")
        try:
            listed = self.filesystem.find(self.root, detail=True)
        except FileNotFoundError:
            return {}
        found = {str(path).strip("/"): int(info["size"] or 0) for path, info in listed.items()}
        if list(found) == [root]:
            raise NotADirectoryError(f"{self.url} is a file")
        return {path[len(root) :].lstrip("/"): size for path, size in found.items()}

    def _make_folder(self, folder: str) -> None:
        self.filesystem.makedirs(folder, exist_ok=True)

    def _upload(self, local: str, path: str) -> None:
        self.filesystem.put_file(local, path)

    def _download(self, path: str) -> bytes:
        return bytes(self.filesystem.cat_file(path))

    def _delete(self, path: str) -> None:
        try:
            self.filesystem.rm_file(path)
        except NotImplementedError:
            # Azure's before 2025
            self.filesystem.rm(path)

    def _move(self, path: str, target: str) -> None:
        self.filesystem.mv(path, target)


@contextmanager
def _spooled(fill: Fill) -> Iterator[str]:
    """The path of a local temporary file that ``fill`` has written; it is removed on exit.

    Upload streams complete an upload when they are closed, even after an error, and cannot be rewound
    for a retry. Encoding locally first means that a failed encoding uploads nothing, and that transient
    storage errors can be retried.
    """
    handle, path = tempfile.mkstemp(prefix="windrow-write-")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
        yield path
    finally:
        os.unlink(path)


def find_store(
    path: str | os.PathLike[str], filesystem: Any, storage_options: Mapping[str, Any] | None
) -> Store:
    """Find the directory that a path and options name; sends no request."""
    if not isinstance(path, (str, os.PathLike)):
        raise PlanError(f"path={path!r}: give the path of one directory")
    connection = connect(path, filesystem, storage_options)
    (root,) = connection.paths
    if connection.opener is None:
        return LocalStore(root)
    if isinstance(connection.opener, pa_fs.FileSystem):
        return ArrowStore(root, connection.opener)
    if "https" in connection.lister.protocol:
        raise PlanError(
            f"{connection.lister.unstrip_protocol(root)} cannot be written over HTTP: write to a local directory, to "
            "object storage, or over SFTP"
        )
    return FsspecStore(root, connection.lister)


@contextmanager
def mapped_errors(store: Store, what: str) -> Iterator[None]:
    """Map errors raised while writing to one WindrowError, with credentials redacted."""
    try:
        yield
    except PlanError as error:
        raise PlanError(redact(f"{what}: {error}", store.secrets)) from error.__cause__
    except WindrowError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) and not isinstance(error, pa.ArrowException):
            raise
        problem = "does not fit into memory" if isinstance(error, MemoryError) else "cannot be written"
        cause = safe_cause(error, store.secrets)
        raise source_error(f"{what}: {problem}", error, _fix(error), store.secrets) from cause


def _fix(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError):
        return "write smaller files: target_file_bytes=, or read smaller blocks"
    if number in _FULL:
        return "the disk is full: make room (TMPDIR too, for stores), or write to another path"
    if number in _DENIED or isinstance(error, PermissionError):
        return "grant write permission, or check the credentials"
    if isinstance(error, (NotADirectoryError, FileExistsError, IsADirectoryError)):
        return "something else stands there: give the path of a directory, new or empty"
    if isinstance(error, FileNotFoundError):
        return "create the bucket first, or check the path"
    if isinstance(error, GaveUpError):
        return "check the store and the network, and write again"
    if isinstance(error, pa.ArrowException) and not isinstance(error, OSError):
        return "a value does not fit the format: change it in map_batches, or write another format"
    return "check the path, the credentials and the permissions"
