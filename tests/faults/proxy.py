"""A proxy before a store that speaks S3, which breaks some of what passes through it.

Which requests it breaks depends on a seed and on what is asked for, never on time: the first
``times`` requests for the same bytes fail, for a ``share`` of all the bytes asked for.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["ANSWERS", "BREAKS", "Fault", "Proxy", "open_proxy"]

ANSWERS = {
    "slow down": (503, "SlowDown", "Please reduce your request rate."),
    "unavailable": (503, "ServiceUnavailable", "Service is unable to handle request."),
    "internal": (500, "InternalError", "We encountered an internal error. Please try again."),
    "too many": (429, "TooManyRequests", "Too many requests."),
    "no such key": (404, "NoSuchKey", "The specified key does not exist."),
    "denied": (403, "AccessDenied", "Access Denied"),
}
# no answer; an answer that breaks off; that stops; that ends early, with and without saying so
BREAKS = ("drop", "reset", "stall", "cut", "short")
_STALL_SECONDS = 60


@dataclass(frozen=True)
class Fault:
    """What goes wrong: a kind of ``ANSWERS`` or ``BREAKS``, how often, and for which requests."""

    kind: str
    share: float = 1.0
    times: float = 1
    seed: int = 0
    methods: tuple[str, ...] = ("GET", "HEAD")
    path: str = ""

    def strikes(self, method: str, target: str, asked: str, before: int) -> bool:
        """Whether the request fails that was made ``before`` times already."""
        if method not in self.methods or self.path not in target or before >= self.times:
            return False
        text = f"{self.seed} {method} {target} {asked}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:4], "little") < self.share * 2**32


class Proxy:
    """Where it listens, the fault that it works, and what it has seen."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        self.fault: Fault | None = None
        self.struck = 0
        self.requests: Counter[str] = Counter()
        self.answered_bytes: Counter[str] = Counter()
        self.released = threading.Event()
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def set(self, fault: Fault | None) -> None:
        """Work another fault from now on, and forget what was seen."""
        with self._lock:
            self.fault, self.struck = fault, 0
            self._seen.clear()
            self.requests.clear()
            self.answered_bytes.clear()

    def count(self, method: str, size_bytes: int) -> None:
        """Count the bytes of an answer."""
        with self._lock:
            self.answered_bytes[method] += size_bytes

    def judge(self, method: str, target: str, asked: str) -> str | None:
        """The kind of fault that a request suffers, or None."""
        with self._lock:
            key = (method, target, asked)
            before = self._seen[key]
            self._seen[key] += 1
            self.requests[method] += 1
            if self.fault is None or not self.fault.strikes(method, target, asked, before):
                return None
            self.struck += 1
            return self.fault.kind


@contextmanager
def open_proxy(upstream: str) -> Iterator[Proxy]:
    """Run a proxy before ``upstream`` (an ``http://host:port``) on a free port of the loopback."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.upstream = upstream.removeprefix("http://")
    server.proxy = proxy = Proxy(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="proxy")
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    upstream: str
    proxy: Proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        fault = self.server.proxy.judge(self.command, self.path, self.headers.get("Range", ""))
        if fault == "drop":
            self._break_off()
        elif fault in ANSWERS:
            self._refuse(*ANSWERS[fault])
        else:
            self._forward(fault)

    def _refuse(self, status: int, code: str, message: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _forward(self, fault: str | None) -> None:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            self._answer(answer, answer.read(), fault)
        finally:
            connection.close()

    def _answer(self, answer: http.client.HTTPResponse, body: bytes, fault: str | None) -> None:
        half = len(body) // 2
        self.server.proxy.count(self.command, len(body))
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        stated = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", str(half) if fault == "short" and half else stated or "0")
        self.end_headers()
        if fault is None or not half:
            self.wfile.write(body)
            return
        self.wfile.write(body[:half])
        if fault == "stall":
            self.server.proxy.released.wait(_STALL_SECONDS)
        if fault == "reset":
            self._break_off()
        if fault != "short":
            self.close_connection = True

    def _break_off(self) -> None:
        """Reset the connection instead of closing it."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
