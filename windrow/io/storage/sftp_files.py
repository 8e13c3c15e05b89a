"""Files of an SFTP server as a filesystem: several connections, one call at a time on each, and new ones for lost ones.

fsspec has one connection, on which calls from several threads hang, and which it never opens again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from fsspec import AbstractFileSystem

from windrow.io.storage.retries import Retries

T = TypeVar("T")

# servers refuse more: OpenSSH begins to at 10 that are not yet authenticated
_MAX_CONNECTIONS = 8
_CONNECT_SECONDS = 15.0
_REPLY_SECONDS = 60.0
_RACES = 10

# of paramiko, which has none by default
TIMEOUTS = {"timeout": _CONNECT_SECONDS, "banner_timeout": _CONNECT_SECONDS, "auth_timeout": _CONNECT_SECONDS}
CONNECT_RETRIES = Retries(seconds=_CONNECT_SECONDS)


class SftpFiles(AbstractFileSystem):  # type: ignore[misc]
    """The files of an SFTP server; ``fs`` is a filesystem of fsspec that says how to connect."""

    cachable = False
    protocol = ("sftp", "ssh")

    def __init__(self, fs: Any) -> None:
        super().__init__(use_listings_cache=False)
        self.fs = fs
        self._idle: list[Any] = []
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._process = os.getpid()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SftpFiles) and bool(self.fs == other.fs)

    def __hash__(self) -> int:
        return hash(self.fs)

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a file without credentials."""
        port = self.fs.storage_options.get("port")
        return f"sftp://{self.fs.host}{f':{port}' if port else ''}/{name.lstrip('/')}"

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """The files and directories of a directory; links count as what they lead to."""
        with self._connection() as connection:
            found = connection.ls(path, detail=True)
            infos = [connection.info(info["name"]) if info["type"] == "link" else info for info in found]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> Any:
        """Size, type and time of the last change."""
        with self._connection() as connection:
            return connection.info(path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a range; the requests for its parts are sent before the first one is answered."""
        with self._connection() as connection, connection.ftp.open(path, "rb") as file:
            if start is None or end is None:
                file.prefetch()
                file.seek(start or 0)
                return bytes(file.read() if end is None else file.read(end - file.tell()))
            return b"".join(file.readv([(start, end - start)]))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it; others may make the same ones now."""
        for attempt in range(1, _RACES + 1):
            with self._connection() as connection:
                try:
                    connection.makedirs(path, exist_ok=exist_ok)
                    return
                except OSError:
                    if attempt == _RACES or not exist_ok:
                        raise

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Send a local file; its size there is checked."""
        with self._connection() as connection:
            connection.ftp.put(lpath, rpath)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        with self._connection() as connection:
            connection.ftp.remove(path)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Rename a file atomically."""
        with self._connection() as connection:
            connection.mv(path1, path2)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """A connection that no other thread uses; it is dropped if it is broken, or if a reply may still come."""
        if self._process != os.getpid():
            # the connections of the process that this one was forked from are in use there
            self._idle, self._free = [], threading.BoundedSemaphore(_MAX_CONNECTIONS)
            self._process = os.getpid()
        with self._free:
            connection = self._open()
            try:
                yield connection
            except Exception as error:
                if isinstance(error, TimeoutError) or not _is_alive(connection):
                    with suppress(Exception):
                        connection.client.close()
                    raise ConnectionResetError(f"{type(error).__name__}: {error}") from error
                self._idle.append(connection)
                raise
            self._idle.append(connection)

    def _open(self) -> Any:
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                if _is_alive(connection):
                    return connection
        options = {**TIMEOUTS, **self.fs.storage_options, "skip_instance_cache": True}
        connection = connect_sftp(lambda: type(self.fs)(*self.fs.storage_args, **options))
        connection.ftp.get_channel().settimeout(_REPLY_SECONDS)
        return connection


def connect_sftp(connect: Callable[[], T]) -> T:
    """Connect; paramiko raises a bare ``EOFError`` where the server hangs up in the meantime."""
    try:
        return connect()
    except EOFError as error:
        raise ConnectionResetError("the server closed the connection while it was opened") from error


def _is_alive(connection: Any) -> bool:
    transport = connection.client.get_transport()
    return transport is not None and transport.is_active() and not connection.ftp.get_channel().closed
