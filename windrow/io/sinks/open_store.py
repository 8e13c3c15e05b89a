"""Open the store that a user's path names, and map its errors to windrow's."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from windrow.core.errors import PlanError, WindrowError
from windrow.io.sinks.local_store import LocalStore
from windrow.io.sinks.remote_stores import ArrowStore, FsspecStore
from windrow.io.sinks.store import Store
from windrow.io.storage.credentials import redact, safe_cause, source_error
from windrow.io.storage.filesystems import connect
from windrow.io.storage.retries import GaveUpError

__all__ = ["find_store", "mapped_errors"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


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
    return FsspecStore(root, connection.opener)


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
