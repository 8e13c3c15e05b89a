"""Write to any filesystem of ``pyarrow.fs``.

Object storage (S3, GCS, Azure) exposes an object only once its upload is complete, so files are
uploaded under their final names. Other filesystems get a hidden temporary file and a rename.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from windrow.io.sinks.spool_file import spooled
from windrow.io.sinks.store import Fill, temporary_name
from windrow.io.storage.credentials import filesystem_secrets
from windrow.io.storage.filesystems import join_path
from windrow.io.storage.retries import Retries

__all__ = ["ArrowStore"]

_OBJECT_STORES = {"s3", "gcs", "abfs"}


@dataclass(frozen=True)
class ArrowStore:
    """A directory of a filesystem; see ``windrow.io.sinks.store.Store``."""

    root: str
    filesystem: Any = field(repr=False)
    retries: Retries = field(default=Retries(), repr=False)

    @property
    def url(self) -> str:
        """The directory, as a URL or path."""
        return self.root

    @property
    def secrets(self) -> tuple[str, ...]:
        """The filesystem's credentials."""
        return filesystem_secrets(self.filesystem)

    @property
    def is_root(self) -> bool:
        """Whether it is the root of a filesystem or bucket."""
        root = self.root.strip("/")
        return not root or (self._is_object_store and "/" not in root)

    def list_files(self) -> list[str]:
        """All files below the directory."""
        selector = pa_fs.FileSelector(self.root, recursive=True, allow_not_found=True)
        found = self.retries.call(lambda: self.filesystem.get_file_info(selector))
        length = len(self.root.rstrip("/")) + 1
        return sorted(info.path[length:] for info in found if info.type == pa_fs.FileType.File)

    def put(self, relative: str, fill: Fill) -> None:
        """Write a file atomically."""
        path = join_path(self.root, relative)
        with spooled(fill) as local:
            if self._is_object_store:
                self.retries.call(lambda: self._upload(local, path))
                return
            folder, name = posixpath.split(path)
            # unique per attempt: Ray can run a task twice, so two attempts can write the same file concurrently
            temporary = join_path(folder, temporary_name(name, os.urandom(4).hex()))
            self.filesystem.create_dir(folder, recursive=True)
            self.retries.call(lambda: self._upload(local, temporary))
            with suppress(FileNotFoundError):
                # some filesystems do not rename onto an existing file; it is this file, of an earlier attempt
                self.filesystem.delete_file(path)
            self.filesystem.move(temporary, path)

    def remove(self, relatives: Collection[str]) -> None:
        """Remove files; missing files are ignored."""
        for relative in relatives:
            with suppress(FileNotFoundError):
                self.filesystem.delete_file(join_path(self.root, relative))

    @property
    def _is_object_store(self) -> bool:
        filesystem = self.filesystem
        while isinstance(filesystem, pa_fs.SubTreeFileSystem):
            filesystem = filesystem.base_fs
        return filesystem.type_name in _OBJECT_STORES

    def _upload(self, local: str, path: str) -> None:
        with pa.OSFile(local) as file:
            data = file.read_buffer()
        # in one call: closing a stream after an error would complete a partial upload
        with self.filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)
