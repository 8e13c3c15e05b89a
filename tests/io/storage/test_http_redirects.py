"""Redirects to another host get no login: many file servers lead to storage that refuses it, or to anybody."""

from __future__ import annotations

import pickle
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


KEYS = {"X-API-Key": "5ecret", "PRIVATE-TOKEN": "t0ken", "Cookie": "session=1"}


class Servers(NamedTuple):
    """The port of a server, and the logins that it and the one of its redirects got."""

    port: int
    first: list[str | None]
    second: list[str | None]
    # the headers that each server got, by name
    first_headers: list[dict[str, str]]
    second_headers: list[dict[str, str]]


@pytest.fixture
def servers() -> Iterator[Servers]:
    first: list[str | None] = []
    second: list[str | None] = []
    first_headers: list[dict[str, str]] = []
    second_headers: list[dict[str, str]] = []

    class Target(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Log nothing on standard error."""

        def do_GET(self) -> None:
            second.append(self.headers["Authorization"])
            second_headers.append(dict(self.headers))
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
            first_headers.append(dict(self.headers))
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{ports[0]}/x")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ExitStack() as stack:
        ports = [stack.enter_context(serving(handler)) for handler in (Target, Redirect)]
        yield Servers(ports[1], first, second, first_headers, second_headers)


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


@pytest.mark.parametrize("given", ["headers", "client_kwargs"])
def test_a_redirect_to_another_host_gets_no_key(servers: Servers, given: str) -> None:
    headers = {**KEYS, "X-Tenant": "me"}
    options: dict[str, Any] = {given: headers if given == "headers" else {"headers": headers}}
    connection = connect(f"http://127.0.0.1:{servers.port}/x", None, options)
    files = Files("", pickle.loads(pickle.dumps(connection.opener)), Retries(seconds=0))
    (name,) = connection.paths
    assert files.look(name).size_bytes == len(CONTENT)
    assert bytes(files.open_remote(name, len(CONTENT)).read_range(0, 9)) == CONTENT[:9]
    assert all(headers.items() <= got.items() for got in servers.first_headers)
    assert servers.second_headers
    for got in servers.second_headers:
        assert not {*KEYS} & {*got}
        assert got["X-Tenant"] == "me"
