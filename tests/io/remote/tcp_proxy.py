"""A proxy for any protocol over TCP that cuts connections."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["TcpProxy", "open_tcp_proxy"]


class TcpProxy:
    """Resets the next ``cuts`` connections, each once the server has sent so many bytes on it."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._cuts, self._after_bytes, self.struck = 0.0, 0, 0
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, times: float, after_bytes: int) -> None:
        """Reset the next connections, and those that are open now."""
        with self._lock:
            self._cuts, self._after_bytes, self.struck = times, after_bytes, 0
            lost = list(self._open) if times else []
        for client in lost:
            _reset(client)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut(float("inf"), 0)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            with self._lock:
                is_cut = self._cuts > 0
                self._cuts -= is_cut
                limit = self._after_bytes if is_cut else float("inf")
                self._open.add(client)
            for source, target, most in ((client, server, float("inf")), (server, client, limit)):
                threading.Thread(target=self._copy, args=(source, target, client, most), daemon=True).start()

    def _copy(
        self, source: socket.socket, target: socket.socket, client: socket.socket, limit: float
    ) -> None:
        copied = 0
        with suppress(OSError):
            while data := source.recv(65_536):
                copied += len(data)
                if copied > limit:
                    with self._lock:
                        self.struck += 1
                    break
                target.sendall(data)
        with self._lock:
            self._open.discard(client)
        if copied > limit:
            _reset(client)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _reset(client: socket.socket) -> None:
    with suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RDWR)
        client.close()


@contextmanager
def open_tcp_proxy(port: int) -> Iterator[TcpProxy]:
    """Run a proxy in front of a port of this machine."""
    proxy = TcpProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
