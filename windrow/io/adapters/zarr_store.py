"""Opens Zarr stores: folders and zip files on local disk, and object storage with this package's retries."""

from __future__ import annotations

import asyncio
import os
import zipfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from windrow.core.errors import SourceError, WindrowError
from windrow.core.optional_dependencies import require
from windrow.io.storage.credentials import filesystem_secrets, safe_cause, source_error, url_secrets
from windrow.io.storage.file_versions import version_from_listing
from windrow.io.storage.filesystems import Files, join_path
from windrow.io.storage.forked_filesystems import in_this_process
from windrow.io.storage.range_reads import read_ranges
from windrow.io.storage.retries import DEFAULT_RETRIES, GaveUpError, Retries

_LISTING_THREADS = 16
_FIX = "check the path, the credentials and storage_options="


@dataclass(frozen=True)
class ZarrStore:
    """Where a store is: small and picklable. ``filesystem`` is fsspec's; None for local disk.

    ``opening`` is a random id of the listing, so that a store that is written again is opened again.
    """

    path: str = field(repr=False)
    filesystem: Any = field(default=None, repr=False)
    retries: Retries = field(default=DEFAULT_RETRIES, repr=False)
    opening: str = field(default_factory=lambda: os.urandom(8).hex(), repr=False)

    @property
    def url(self) -> str:
        """The path as a user would write it, without credentials."""
        return Files(self.path, self.filesystem).url

    @property
    def client(self) -> Any:
        """The filesystem to send requests with in this process."""
        return in_this_process(self.filesystem)

    @property
    def is_zip(self) -> bool:
        return self.filesystem is None and os.path.isfile(self.path)

    def list_keys(self) -> list[tuple[str, int, str]]:
        """The key, size and version of every object of the store, in the order of their keys."""
        with self.mapped_errors(f"{self.url} cannot be listed"):
            if self.is_zip:
                with zipfile.ZipFile(self.path) as archive:
                    infos = archive.infolist()
                return sorted((info.filename, info.file_size, f"{info.CRC:08x}") for info in infos)
            if self.filesystem is None:
                return sorted(self._list_local())
            client = self.client
            client.invalidate_cache()
            found = self.retries.call(lambda: client.find(self.path, detail=True))
            root = self.path.strip("/") + "/"
            # pages of web servers have links only
            with ThreadPoolExecutor(_LISTING_THREADS, "windrow-zarr") as threads:
                lacking = [path for path, info in found.items() if info.get("size") is None]
                found.update(zip(lacking, threads.map(self.find_info, lacking), strict=True))
            versions = {path: version_from_listing(info) for path, info in found.items()}
            return sorted(
                (path.lstrip("/").removeprefix(root), version.size_bytes, f"{version.stamp:016x}")
                for path, version in versions.items()
            )

    def find_info(self, path: str) -> Any:
        return self.retries.read(lambda: self.client.info(path), 0)

    def _list_local(self) -> Iterator[tuple[str, int, str]]:
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = os.path.join(folder, name)
                stat = os.stat(path)
                yield os.path.relpath(path, self.path), stat.st_size, str(stat.st_mtime_ns)

    @contextmanager
    def mapped_errors(self, what: str, fix: str = _FIX) -> Iterator[None]:
        """Map errors of zarr and of filesystems to SourceError, without credentials."""
        try:
            yield
        except (WindrowError, MemoryError):
            raise
        except Exception as error:
            if isinstance(error, GaveUpError):
                fix = "check the object storage and the network, or allow more time with retry_seconds="
            secrets = (*filesystem_secrets(self.filesystem), *url_secrets(self.path))
            raise source_error(what, error, fix, secrets) from safe_cause(error, secrets)


@lru_cache(maxsize=64)
def open_store(store: ZarrStore) -> Any:
    """Open the array or group at the root of a store, read-only, once in a process."""
    zarr = require("zarr", "zarr", "read_zarr()")
    with store.mapped_errors(f"{store.url} is not a Zarr store that can be opened"):
        if store.filesystem is not None:
            opened = _remote_class()(store)
        elif not os.path.exists(store.path):
            raise SourceError(f"{store.url}: there is no such folder or zip file; check the path")
        elif store.is_zip:
            opened = zarr.storage.ZipStore(store.path, mode="r")
        else:
            opened = zarr.storage.LocalStore(store.path, read_only=True)
        return zarr.open(opened, mode="r")


@lru_cache(maxsize=1)
def _remote_class() -> type[Any]:
    """The class of stores in object storage; zarr's own takes no filesystem of pyarrow, and retries nothing."""
    base: Any = require("zarr.abc.store", "zarr", "read_zarr()").Store

    class RemoteStore(base):  # type: ignore[misc]
        """A read-only store below a path of a filesystem; each request is retried, and has a timeout."""

        supports_writes = False
        supports_deletes = False
        supports_listing = True

        def __init__(self, where: ZarrStore) -> None:
            super().__init__(read_only=True)
            self.where = where

        def __eq__(self, other: object) -> bool:
            return isinstance(other, RemoteStore) and self.where == other.where

        def __hash__(self) -> int:
            return hash(self.where)

        def __str__(self) -> str:
            return self.where.url

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            try:
                data = await asyncio.to_thread(self._read, key, *_bounds(byte_range))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError, KeyError):
                # an object that is missing has the fill value
                return None
            return prototype.buffer.from_bytes(data)

        def _read(self, key: str, start: int | None, stop: int | None) -> bytes:
            path = join_path(self.where.path, key)
            size = 0 if start is None or stop is None else stop - start
            return self.where.retries.read(lambda: _read_range(self.where.client, path, start, stop), size)

        async def get_partial_values(self, prototype: Any, key_ranges: Any) -> list[Any]:
            return await asyncio.gather(*(self.get(key, prototype, span) for key, span in key_ranges))

        async def exists(self, key: str) -> bool:
            return await asyncio.to_thread(self._exists, join_path(self.where.path, key))

        def _exists(self, path: str) -> bool:
            # isfile() of fsspec takes every error for a missing file
            try:
                info = self.where.find_info(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return bool(info["type"] == "file")

        async def list(self) -> AsyncIterator[str]:
            async for key in self.list_prefix(""):
                yield key

        async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
            found = await asyncio.to_thread(self.where.list_keys)
            for key, _, _ in found:
                if key.startswith(prefix):
                    yield key

        async def list_dir(self, prefix: str) -> AsyncIterator[str]:
            path = join_path(self.where.path, prefix).rstrip("/")
            ask = self.where.client.ls
            try:
                found = await asyncio.to_thread(
                    lambda: self.where.retries.call(lambda: ask(path, detail=False))
                )
            except (FileNotFoundError, NotADirectoryError):
                return
            for name in found:
                yield str(name).rstrip("/").rpartition("/")[2]

        async def set(self, key: str, value: Any) -> None:
            raise PermissionError(f"{key}: the store is read-only")

        async def delete(self, key: str) -> None:
            raise PermissionError(f"{key}: the store is read-only")

    return RemoteStore


def _read_range(filesystem: Any, path: str, start: int | None, stop: int | None) -> bytes:
    """Read an object, or a range of it, completely or not at all."""
    if start is None:
        return bytes(filesystem.cat_file(path))
    if start < 0 or stop is None:
        size = int(filesystem.info(path)["size"])
        start, stop = max(0, size + start) if start < 0 else start, size
    # fsspec's wrapper of a pyarrow filesystem cannot seek
    opener = filesystem.fs if type(filesystem).__name__ == "ArrowFSWrapper" else filesystem
    return bytes(read_ranges(opener, path)(start, stop))


def _bounds(byte_range: Any) -> tuple[int | None, int | None]:
    """The first and last byte of zarr's three kinds of ranges; the first is negative if it counts from the end."""
    if byte_range is None:
        return None, None
    if hasattr(byte_range, "suffix"):
        return -byte_range.suffix, None
    if hasattr(byte_range, "offset"):
        return byte_range.offset, None
    return byte_range.start, byte_range.end
