"""Write to any fsspec filesystem.

Object storage exposes an object only once its single PUT, or the request that completes its multipart
upload, has succeeded, so files are uploaded under their final names. Other filesystems (SFTP, SMB,
HDFS, memory ...) get a hidden temporary file and a rename, which is as atomic as theirs.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from windrow.io.sinks.spool_file import spooled
from windrow.io.sinks.store import Fill, temporary_name
from windrow.io.storage.credentials import filesystem_secrets, without_user
from windrow.io.storage.filesystems import join_path
from windrow.io.storage.retries import Retries

__all__ = ["FsspecStore"]

_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "obs", "cos", "r2"}
_REMOVING_THREADS = 16


@dataclass(frozen=True)
class FsspecStore:
    """A directory of a filesystem; see ``windrow.io.sinks.store.Store``."""

    root: str
    filesystem: Any = field(repr=False)
    retries: Retries = field(default=Retries(), repr=False)

    @property
    def url(self) -> str:
        """The directory, without credentials."""
        return without_user(str(self.filesystem.unstrip_protocol(self.root)))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The filesystem's credentials."""
        return filesystem_secrets(self.filesystem)

    @property
    def is_root(self) -> bool:
        """Whether it is the root of a filesystem or bucket."""
        return not posixpath.dirname(self.root.strip("/")) and (
            self._is_object_store or not self.root.strip("/")
        )

    def list_files(self) -> list[str]:
        """All files below the directory."""
        return sorted(self.retries.call(self._find))

    def put(self, relative: str, fill: Fill) -> None:
        """Write a file atomically, as far as the filesystem's rename is atomic."""
        # unique per attempt: Ray can run a task twice, so two attempts can write the same file concurrently
        attempt = os.urandom(4).hex()
        with spooled(fill) as local:
            self.retries.call(lambda: self._send(local, join_path(self.root, relative), attempt))

    def remove(self, relatives: Collection[str]) -> None:
        """Remove files; missing files are ignored."""
        with ThreadPoolExecutor(_REMOVING_THREADS, "windrow-remove") as threads:
            list(threads.map(self._remove, relatives))

    @property
    def _is_object_store(self) -> bool:
        protocol = self.filesystem.protocol
        return not _OBJECT_STORES.isdisjoint([protocol] if isinstance(protocol, str) else protocol)

    def _find(self) -> list[str]:
        self.filesystem.invalidate_cache()
        root = self.root.strip("/")
        try:
            found = [str(path).strip("/") for path in self.filesystem.find(self.root)]
        except FileNotFoundError:
            return []
        if found == [root]:
            raise NotADirectoryError(f"{self.url} is a file")
        return [path[len(root) :].lstrip("/") for path in found]

    def _send(self, local: str, path: str, attempt: str) -> None:
        if self._is_object_store:
            self.filesystem.put_file(local, path)
            return
        folder, name = posixpath.split(path)
        temporary = join_path(folder, temporary_name(name, attempt))
        self.filesystem.makedirs(folder, exist_ok=True)
        self.filesystem.put_file(local, temporary)
        with suppress(FileNotFoundError):
            # some filesystems do not rename onto an existing file; it is this file, of an earlier attempt
            self.filesystem.rm_file(path)
        self.filesystem.mv(temporary, path)

    def _remove(self, relative: str) -> None:
        with suppress(FileNotFoundError):
            self.retries.call(lambda: self.filesystem.rm_file(join_path(self.root, relative)))
