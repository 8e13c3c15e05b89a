"""The proxy of ``python -m bench store``: latency, bandwidth limit, counters, and unchanged bytes."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.remote.s3_server import NetworkConditions, Proxy, open_proxy

CONTENT = bytes(range(256)) * 4096


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(len(body).to_bytes(8, "little"))

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    with open_proxy("127.0.0.1", server.server_address[1]) as proxy:
        yield proxy
    server.shutdown()
    server.server_close()
    thread.join()


def ask(proxy: Proxy, times: int, method: str = "GET", body: bytes | None = None) -> list[bytes]:
    connection = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=30)
    answers = []
    for _ in range(times):
        connection.request(method, "/x", body)
        answers.append(connection.getresponse().read())
    connection.close()
    return answers


def test_bytes_pass_unchanged_and_are_counted(proxy: Proxy) -> None:
    proxy.set(NetworkConditions())
    assert ask(proxy, 3) == [CONTENT] * 3
    assert 3 * len(CONTENT) < proxy.set(NetworkConditions()) < 3 * len(CONTENT) + 1_000
    sizes = ask(proxy, 2, "PUT", b"GET / HTTP/1.1\r\n\r\n" * 50_000)
    assert [int.from_bytes(size, "little") for size in sizes] == [900_000] * 2
    assert 0 < proxy.set(NetworkConditions()) < 1_000
    assert proxy.set(NetworkConditions()) == 0


def test_latency_delays_each_request_but_not_concurrent_ones(proxy: Proxy) -> None:
    proxy.set(NetworkConditions(latency_seconds=0.1))
    began = time.monotonic()
    ask(proxy, 3)
    assert time.monotonic() - began >= 0.3
    began = time.monotonic()
    with ThreadPoolExecutor(30) as threads:
        list(threads.map(lambda _: ask(proxy, 1), range(30)))
    assert time.monotonic() - began < 2.0


def test_bandwidth_limit_covers_all_responses(proxy: Proxy) -> None:
    proxy.set(NetworkConditions(bytes_per_second=8 * len(CONTENT)))
    began = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: ask(proxy, 1), range(4)))
    assert time.monotonic() - began >= 4 / 8 - 0.1
