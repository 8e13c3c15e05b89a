"""Redirects to another host get no login: many file servers lead to storage that refuses it, or to anybody."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

import pytest

from tests.io.storage.web_server import serving
from windrow.io.storage.filesystems import Files, connect
from windrow.io.storage.retries import Retries

aiohttp = pytest.importorskip("aiohttp")

CONTENT = bytes(range(200))


class Servers(NamedTuple):
    """The port of a server, and the logins that it and the one of its redirects got."""

    port: int
    first: list[str | None]
    second: list[str | None]


@pytest.fixture
def servers() -> Iterator[Servers]:
    first: list[str | None] = []
    second: list[str | None] = []

    class Target(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Log nothing on standard error."""

        def do_GET(self) -> None:
            second.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(CONTENT)

        def do_HEAD(self) -> None:
            self.do_GET()

    class Redirect(Target):
        def do_GET(self) -> None:
            first.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{ports[0]}/x")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ExitStack() as stack:
        ports = [stack.enter_context(serving(handler)) for handler in (Target, Redirect)]
        yield Servers(ports[1], first, second)


@pytest.mark.parametrize("given", ["URL", "client_kwargs", "auth", "headers", "filesystem"])
def test_a_redirect_to_another_host_gets_no_login(servers: Servers, given: str) -> None:
    import fsspec

    with warnings.catch_warnings():
        # aiohttp 4 will have no such class; fsspec's guide names it
        warnings.simplefilter("ignore", DeprecationWarning)
        login = aiohttp.BasicAuth("me", "pw")
    options: dict[str, dict[str, Any]] = {
        "client_kwargs": {"client_kwargs": {"auth": login}},
        "auth": {"auth": login},
        "headers": {"headers": {"Authorization": login.encode()}},
    }
    filesystem = fsspec.filesystem("http", client_kwargs={"auth": login}) if given == "filesystem" else None
    user = "me:pw@" if given == "URL" else ""
    url = f"http://{user}127.0.0.1:{servers.port}/x"
    connection = connect(url, filesystem, None if filesystem else options.get(given))
    files = Files("", connection.opener, Retries(seconds=0))
    (name,) = connection.paths
    assert files.look(name).size_bytes == len(CONTENT)
    assert bytes(files.open_remote(name, len(CONTENT)).read_range(0, 9)) == CONTENT[:9]
    assert set(servers.first) == {login.encode()}
    assert set(servers.second) == {None}
