"""A proxy that puts distance between a client and a store: latency, and a limit of bandwidth.

Bodies go from socket to socket inside the kernel, so that it costs next to nothing itself. It is
a process of its own: each line that it reads is a new setting, and it answers what it has passed
since the one before.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

__all__ = ["Distance", "Passed", "Proxy", "open_proxy"]

_CHUNK_BYTES = 256 * 1024
_BODY = re.compile(rb"(?i)\r\ncontent-length:\s*(\d+)")
# of a bandwidth limit; what may pass at once
_BURST_SECONDS = 0.02


@dataclass(frozen=True)
class Distance:
    """What is added: seconds to each request, and bytes a second for all answers; 0: no limit."""

    latency_seconds: float = 0.0
    bytes_per_second: float = 0.0


@dataclass(frozen=True)
class Passed:
    """Requests and bytes of answers, and how many requests were under way at once at most."""

    requests: int = 0
    answer_bytes: int = 0
    at_once: int = 0


class Proxy:
    """The proxy's process."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self._process, self.endpoint = process, endpoint

    def set(self, distance: Distance) -> Passed:
        """Add this from now on; returns what has passed since the last time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(distance)) + "\n")
        self._process.stdin.flush()
        return Passed(**json.loads(self._process.stdout.readline()))


@contextmanager
def open_proxy(host: str, port: int) -> Iterator[Proxy]:
    """Run a proxy before a server."""
    command = [sys.executable, "-m", "bench.remote.distance", host, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Proxy(process, f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.terminate()


class _Line:
    """What all connections share."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.distance = Distance()
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._requests = self._bytes = self._at_once = self._under_way = 0

    def take_passed(self) -> Passed:
        with self._lock:
            passed = Passed(self._requests, self._bytes, self._at_once)
            self._requests = self._bytes = self._at_once = 0
            return passed

    def request(self) -> None:
        """Count a request, and hold it up."""
        with self._lock:
            self._requests += 1
            self._under_way += 1
            self._at_once = max(self._at_once, self._under_way)
        if self.distance.latency_seconds:
            time.sleep(self.distance.latency_seconds)

    def ended(self, requests: int) -> None:
        """Some requests are no longer under way."""
        with self._lock:
            self._under_way -= requests

    def answer(self, size_bytes: int) -> None:
        """Count bytes of answers, and hold them up."""
        rate, now = self.distance.bytes_per_second, time.monotonic()
        with self._lock:
            self._bytes += size_bytes
            if not rate:
                return
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + size_bytes / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


def _serve(line: _Line) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            client, _ = server.accept()
            threading.Thread(target=_connect, args=(line, client), daemon=True).start()


def _connect(line: _Line, client: socket.socket) -> None:
    with client, socket.create_connection(line.upstream) as upstream:
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = [0]
        back = threading.Thread(target=_pass_answers, args=(line, upstream, client), daemon=True)
        back.start()
        with suppress(OSError):
            _pass_requests(line, client, upstream, asked)
        with suppress(OSError):
            upstream.shutdown(socket.SHUT_RDWR)
        back.join()
        line.ended(asked[0])


def _pass_requests(line: _Line, client: socket.socket, upstream: socket.socket, asked: list[int]) -> None:
    """Requests come one after another on a connection, so the next one tells that one has ended."""
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
            line.ended(asked[0])
            asked[0] = 1
            line.request()
            upstream.sendall(head + blank)
            seen, body = rest, int(length[1]) if length else 0


def _pass_answers(line: _Line, upstream: socket.socket, client: socket.socket) -> None:
    read, write = os.pipe()
    try:
        while count := os.splice(upstream.fileno(), write, _CHUNK_BYTES):
            line.answer(count)
            while count:
                count -= os.splice(read, client.fileno(), count)
    except OSError:
        pass  # either side may go away
    finally:
        os.close(read)
        os.close(write)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _main() -> None:
    line = _Line((sys.argv[1], int(sys.argv[2])))
    threading.Thread(target=_serve, args=(line,), daemon=True).start()
    for setting in sys.stdin:
        line.distance = Distance(**json.loads(setting))
        print(json.dumps(asdict(line.take_passed())), flush=True)


if __name__ == "__main__":
    _main()
