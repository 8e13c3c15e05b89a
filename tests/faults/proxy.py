"""A fault-injecting proxy in front of an HTTP server, such as one of S3.

Which requests fail depends on a seed and on the requested bytes, never on time: the first
``times`` requests for the same bytes fail, for a ``share`` of all byte ranges.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["BROKEN_RESPONSES", "ERROR_RESPONSES", "Fault", "Proxy", "open_proxy"]

ERROR_RESPONSES = {
    "slow down": (503, "SlowDown", "Please reduce your request rate."),
    "unavailable": (503, "ServiceUnavailable", "Service is unable to handle request."),
    "internal": (500, "InternalError", "We encountered an internal error. Please try again."),
    "too many": (429, "TooManyRequests", "Too many requests."),
    "no such key": (404, "NoSuchKey", "The specified key does not exist."),
    "denied": (403, "AccessDenied", "Access Denied"),
}
# no response; a reset connection; a stalled response; a truncated one, with and without a matching length
BROKEN_RESPONSES = ("drop", "reset", "stall", "cut", "short")
_STALL_SECONDS = 60


@dataclass(frozen=True)
class Fault:
    """A fault: a kind out of ``ERROR_RESPONSES`` or ``BROKEN_RESPONSES``, how often, and for which requests."""

    kind: str
    share: float = 1.0
    times: float = 1
    seed: int = 0
    methods: tuple[str, ...] = ("GET", "HEAD")
    path: str = ""

    def matches(self, method: str, target: str, requested: str, before: int) -> bool:
        """Whether a request fails that was made ``before`` times already."""
        if method not in self.methods or self.path not in target or before >= self.times:
            return False
        text = f"{self.seed} {method} {target} {requested}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:4], "little") < self.share * 2**32


class Proxy:
    """The proxy's address, the injected fault, and the observed requests."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str = "http") -> None:
        self.endpoint = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        # what a request must have in its target, or else is denied
        self.required = ""
        self.fault: Fault | None = None
        self.struck = 0
        self.requests: Counter[str] = Counter()
        self.answered_bytes: Counter[str] = Counter()
        self.released = threading.Event()
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def set(self, fault: Fault | None) -> None:
        """Set the injected fault and clear the observed requests."""
        with self._lock:
            self.fault, self.struck = fault, 0
            self._seen.clear()
            self.requests.clear()
            self.answered_bytes.clear()

    def count(self, method: str, size_bytes: int) -> None:
        """Count the bytes of a response."""
        with self._lock:
            self.answered_bytes[method] += size_bytes

    def choose_fault(self, method: str, target: str, requested: str) -> str | None:
        """The kind of fault to inject into a request, or None."""
        with self._lock:
            key = (method, target, requested)
            before = self._seen[key]
            self._seen[key] += 1
            self.requests[method] += 1
            if self.fault is None or not self.fault.matches(method, target, requested, before):
                return None
            self.struck += 1
            return self.fault.kind


@contextmanager
def open_proxy(upstream: str, certificate: Path | None = None) -> Iterator[Proxy]:
    """Run a proxy in front of ``upstream`` (an ``http://host:port``) on a free local port.

    With a certificate, a file that also has its key, clients talk TLS with the proxy.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        # the threads of requests shake hands, not the one that accepts connections
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.upstream = upstream.removeprefix("http://")
    server.proxy = proxy = Proxy(server, "http" if certificate is None else "https")
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
        """Ignore clients that close the connection, which these tests do on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        self.body = self._read_body()
        fault = self.server.proxy.choose_fault(self.command, self.path, self.headers.get("Range", ""))
        if self.server.proxy.required not in self.path:
            fault = "denied"
        if fault == "drop":
            self._reset_connection()
        elif fault in ERROR_RESPONSES:
            self._respond_with_error(*ERROR_RESPONSES[fault])
        else:
            self._forward(fault)

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _respond_with_error(self, status: int, code: str, message: str) -> None:
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
                if name.lower() not in ("transfer-encoding", "content-length", "expect"):
                    connection.putheader(name, value)
            if self.body or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(self.body)))
            connection.endheaders(self.body or None)
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
            self._reset_connection()
        if fault != "short":
            self.close_connection = True

    def _reset_connection(self) -> None:
        """Reset the connection instead of closing it."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
