"""Connections to SFTP servers: one call at a time on each, and none that is broken or may still get a reply."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import windrow
from windrow.io.storage import sftp_files
from windrow.io.storage.credentials import filesystem_secrets
from windrow.io.storage.filesystems import connect
from windrow.io.storage.retries import is_transient
from windrow.io.storage.sftp_files import SftpFiles, SftpServer


class Server:
    """Makes connections as fsspec's filesystem does, and counts them; ``fails`` is what the next call raises."""

    def __init__(self) -> None:
        self.connections: list[Any] = []
        self.fails: list[Exception] = []
        self.breaks = False
        self.at_once = self.most = 0
        self._lock = threading.Lock()
        self.everybody_is_in = threading.Event()
        self.wanted = 0


def make(server: Server) -> SftpFiles:
    class Connection:
        host = "host"
        storage_args = ()
        storage_options: ClassVar[dict[str, Any]] = {}

        def __init__(self, **options: Any) -> None:
            assert options["timeout"] == 15
            self.alive = True
            transport = SimpleNamespace(is_active=lambda: self.alive)
            self.client = SimpleNamespace(get_transport=lambda: transport, close=lambda: None)
            channel = SimpleNamespace(settimeout=lambda seconds: None, closed=False)
            self.ftp = SimpleNamespace(get_channel=lambda: channel)
            self.busy = False
            server.connections.append(self)

        def info(self, path: str) -> dict[str, Any]:
            assert not self.busy, "two calls on one connection"
            self.busy = True
            with server._lock:
                server.at_once += 1
                server.most = max(server.most, server.at_once)
                if server.at_once >= server.wanted:
                    server.everybody_is_in.set()
            if server.wanted:
                server.everybody_is_in.wait(10)
            with server._lock:
                server.at_once -= 1
            self.busy = False
            if server.fails:
                self.alive = not server.breaks
                raise server.fails.pop()
            return {"name": path, "size": 1, "type": "file"}

    files = SftpFiles.of(Connection(timeout=15))
    server.connections.clear()
    return files


def test_calls_of_one_thread_share_a_connection() -> None:
    server = Server()
    files = make(server)
    server.fails = [FileNotFoundError("x")]
    with pytest.raises(FileNotFoundError):
        files.info("/x")
    assert [files.info("/x")["size"] for _ in range(3)] == [1, 1, 1]
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    ("error", "breaks"),
    [(TimeoutError("late"), False), (EOFError(), False), (EOFError(), True), (OSError(), True)],
)
def test_a_connection_that_failed_is_not_used_again(error: Exception, breaks: bool) -> None:
    server = Server()
    files = make(server)
    server.fails, server.breaks = [error], breaks
    with pytest.raises(ConnectionResetError) as caught:
        files.info("/x")
    assert is_transient(caught.value)
    assert files.info("/x")["size"] == 1
    assert len(server.connections) == 2


def test_concurrent_calls_have_connections_of_their_own_up_to_a_limit() -> None:
    server = Server()
    files = make(server)
    server.wanted = sftp_files._MAX_CONNECTIONS
    with ThreadPoolExecutor(40) as threads:
        list(threads.map(files.info, ["/x"] * 40))
    assert server.most == len(server.connections) == sftp_files._MAX_CONNECTIONS


def test_a_server_that_hangs_up_while_connecting_is_tried_again() -> None:
    def connect(**_: Any) -> None:
        raise EOFError

    with pytest.raises(ConnectionResetError, match="closed the connection") as caught:
        SftpFiles(SftpServer(connect)).info("/x")
    assert is_transient(caught.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_connection_that_was_interrupted_is_closed(error: type[BaseException]) -> None:
    server = Server()
    files = make(server)
    files.info("/x")
    closed: list[bool] = []
    server.connections[0].client.close = lambda: closed.append(True)
    with pytest.raises(error), files._connection():
        raise error
    assert closed == [True]
    files.info("/x")
    assert len(server.connections) == 2


def test_filesystems_of_a_server_share_connections() -> None:
    server = Server()
    files = make(server)
    for same in (files, SftpFiles(files.server)):
        same.info("/x")
    assert len(server.connections) == 1


def test_urls_are_split_and_nothing_connects_before_the_first_request() -> None:
    pytest.importorskip("paramiko")
    urls = ["sftp://me:p%2Fw%40x@host:22/a b/?.csv", "ssh://me:p%2Fw%40x@host:22/c#d"]
    connection = connect(urls, None, {"look_for_keys": False})
    assert connection.paths == ("/a b/?.csv", "/c#d")
    for files in (connection.opener, pickle.loads(pickle.dumps(connection.opener))):
        options = {"host": "host", "port": 22, "username": "me", "password": "p/w@x", "look_for_keys": False}
        assert files.server.options == options
        assert files.unstrip_protocol("/c") == "sftp://host:22/c"
        assert {"me", "p/w@x"} <= set(filesystem_secrets(files))
        assert "p/w@x" not in repr(files.server)
    with pytest.raises(windrow.PlanError, match="sftp://one/x and sftp://two/y are on different filesystems"):
        connect(["sftp://one/x", "sftp://me:hidden@two/y"], None, None)


def test_a_connection_without_login_is_closed() -> None:
    closed: list[bool] = []

    class Refused:
        def __init__(self, **_: Any) -> None:
            self._connect()

        def _connect(self) -> None:
            self.client = SimpleNamespace(close=lambda: closed.append(True))
            raise PermissionError("wrong password")

    with pytest.raises(PermissionError):
        SftpFiles(SftpServer(Refused)).info("/x")
    assert closed == [True]


def test_connecting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sftp_files, "_OPEN_SECONDS", 0.05)
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            SftpFiles(SftpServer(lambda **_: release.wait())).info("/x")
    finally:
        release.set()


def test_links_to_nothing_do_not_fail_their_folder() -> None:
    files = make(Server())
    targets = {"/x/file": "file", "/x/folder": "directory"}

    def info(path: str) -> dict[str, Any]:
        if path not in targets:
            raise FileNotFoundError(path)
        return {"name": path, "type": targets[path]}

    with files._connection() as connection:
        names = ("/x/file", "/x/folder", "/x/nothing")
        connection.ls = lambda *_, **__: [{"name": name, "type": "link"} for name in names]
        connection.info = info
    assert [found["type"] for found in files.ls("/x")] == ["file", "directory", "link"]
