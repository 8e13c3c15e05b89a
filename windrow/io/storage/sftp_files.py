"""Files of an SFTP server as a filesystem: several connections, one call at a time on each, and new ones for lost ones.

fsspec has one connection, on which calls from several threads hang, and which it never opens again. All filesystems of
a server share the connections of their process, since paramiko closes none that is merely forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from fsspec import AbstractFileSystem, get_filesystem_class

from windrow.core.errors import PlanError
from windrow.core.system.processes import call_in_forked_children
from windrow.io.storage.credentials import without_user
from windrow.io.storage.retries import call_within

# servers refuse more: OpenSSH begins to at 10 that are not yet authenticated
_MAX_CONNECTIONS = 8
_CONNECT_SECONDS = 15.0
# until files can be read, after all steps of connecting; paramiko would wait for the last ones without end
_OPEN_SECONDS = 30.0
_REPLY_SECONDS = 60.0
_RACES = 10
# of paramiko, which has none by default
_TIMEOUTS = {
    "timeout": _CONNECT_SECONDS,
    "banner_timeout": _CONNECT_SECONDS,
    "auth_timeout": _CONNECT_SECONDS,
}


@dataclass(frozen=True)
class SftpServer:
    """How to connect to a server: the class of fsspec's filesystem and its arguments, which can hold credentials."""

    kind: Any
    arguments: tuple[Any, ...] = field(default=(), hash=False, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    @property
    def address(self) -> str:
        """The host, and the port if one is given."""
        host, port = self.options.get("host", *self.arguments[:1]), self.options.get("port")
        return f"{host}:{port}" if port else str(host)

    def connect(self) -> Any:
        """Open a connection: a filesystem of fsspec that nothing else uses."""
        options = {**_TIMEOUTS, **self.options, "skip_instance_cache": True}
        try:
            connection = call_within(_OPEN_SECONDS, lambda: _closing(self.kind)(*self.arguments, **options))
        except EOFError as error:
            # of paramiko, where the server hangs up in the meantime
            raise ConnectionResetError("the server closed the connection while it was opened") from error
        connection.ftp.get_channel().settimeout(_REPLY_SECONDS)
        return connection


def connect_sftp(urls: Sequence[str], options: Mapping[str, Any]) -> tuple[SftpFiles, list[str]]:
    """The server of some URLs, and the paths of the URLs there; connects to it at the first request."""
    kind = get_filesystem_class("sftp")
    parts = [_split_url(kind, url) for url in urls]
    servers = [SftpServer(kind, (), {**given, **options}) for given, _ in parts]
    for url, server in zip(urls, servers, strict=True):
        if server != servers[0]:
            first, this = without_user(urls[0]), without_user(url)
            raise PlanError(f"{first} and {this} are on different filesystems: read them separately")
    return SftpFiles(servers[0]), [path for _, path in parts]


@lru_cache(maxsize=8)
def _closing(kind: Any) -> Any:
    """The class of fsspec's filesystem; one that cannot log in closes its connection, which nobody else can."""
    if not hasattr(kind, "_connect"):
        return kind

    class Closing(kind):  # type: ignore[misc]
        def _connect(self) -> None:
            try:
                super()._connect()
            except BaseException:
                _close(self)
                raise

    return Closing


def _split_url(kind: Any, url: str) -> tuple[dict[str, Any], str]:
    """The options that a URL states, and its path, in which ``?`` and ``#`` are part of names."""
    stated = kind._get_kwargs_from_urls(url)
    options = {name: stated[name] for name in ("host", "port", "username", "password") if name in stated}
    for name in {"username", "password"} & options.keys():
        options[name] = unquote(options[name])
    return options, "/" + url.partition("://")[2].partition("/")[2]


class SftpFiles(AbstractFileSystem):  # type: ignore[misc]
    """The files of an SFTP server; small and picklable, with the credentials."""

    cachable = False
    protocol = ("sftp", "ssh")

    def __init__(self, server: SftpServer) -> None:
        super().__init__(use_listings_cache=False)
        self.server = server

    @classmethod
    def of(cls, filesystem: Any) -> SftpFiles:
        """The files of the server that a filesystem of fsspec is connected to."""
        return cls(SftpServer(type(filesystem), filesystem.storage_args, filesystem.storage_options))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SftpFiles) and self.server == other.server

    def __hash__(self) -> int:
        return hash(self.server)

    def unstrip_protocol(self, name: str) -> str:
        return f"sftp://{self.server.address}/{name.lstrip('/')}"

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """The files and directories of a directory; links count as what they lead to, or stay links if to nothing."""
        with self._connection() as connection:
            infos = [_follow(connection, info) for info in connection.ls(path, detail=True)]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> Any:
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
        with self._connection() as connection:
            connection.ftp.remove(path)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        with self._connection() as connection:
            connection.mv(path1, path2)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        if self.server not in _POOLS:
            _POOLS.setdefault(self.server, _Pool(self.server))
        with _POOLS[self.server].connection() as connection:
            yield connection


class _Pool:
    """The connections of this process to a server."""

    def __init__(self, server: SftpServer) -> None:
        self._server = server
        self._idle: list[Any] = []
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection that no other thread uses; it is closed if it is broken, or if a reply may still come."""
        with self._free:
            connection = self._find_idle() or self._server.connect()
            try:
                yield connection
            except Exception as error:
                # a connection that the server has ended may still look alive: paramiko marks it closed a little later
                if isinstance(error, (TimeoutError, EOFError)) or not _is_alive(connection):
                    _close(connection)
                    raise ConnectionResetError(f"{type(error).__name__}: {error}") from error
                self._idle.append(connection)
                raise
            except BaseException:
                _close(connection)
                raise
            self._idle.append(connection)

    def _find_idle(self) -> Any:
        while self._idle:
            with suppress(IndexError):
                connection = self._idle.pop()
                if _is_alive(connection):
                    return connection
                _close(connection)
        return None


_POOLS: dict[SftpServer, _Pool] = {}
_OF_PARENTS: list[_Pool] = []


def _leave_to_parent() -> None:
    """Use no connection of the parent, nor forget one: channels of paramiko that are collected send a message."""
    _OF_PARENTS.extend(_POOLS.values())
    _POOLS.clear()


call_in_forked_children(_leave_to_parent)


def _follow(connection: Any, info: dict[str, Any]) -> Any:
    if info["type"] != "link":
        return info
    try:
        return connection.info(info["name"])
    except (FileNotFoundError, PermissionError):
        # as on local disk, what reads the file raises
        return info


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.client.close()


def _is_alive(connection: Any) -> bool:
    transport = connection.client.get_transport()
    return transport is not None and transport.is_active() and not connection.ftp.get_channel().closed
