"""The connection of a process to a cluster supervisor: authenticated messages, and proof that the process lives.

The supervisor keeps its part of the cluster running as long as a process is connected. The operating system
closes the connection of a process that ends, however it ends.
"""

from __future__ import annotations

import hmac
import socket
from contextlib import suppress
from typing import Any

from windrow.pipeline.executors.socket_messages import receive_bytes, receive_message, send_message

_HELLO_SECONDS = 20.0
_MAX_HELLO_BYTES = 1024
# A node that is cut off for some minutes is not lost; one that is gone does not keep the cluster.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 30), ("TCP_KEEPCNT", 10))


class Channel:
    """Pickled messages over a socket whose two ends have shown that they know the same token."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            with suppress(AttributeError, OSError):  # not on every system
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def local_ip(self) -> str:
        return str(self._socket.getsockname()[0])

    def send(self, message: Any) -> None:
        """Send a message; raises an OSError if the other end is gone."""
        send_message(self._socket, message)

    def receive(self, seconds: float | None = None) -> Any:
        """Wait for a message; raises EOFError if the other end is gone, TimeoutError after ``seconds``."""
        self._socket.settimeout(seconds)
        try:
            return receive_message(self._socket)
        finally:
            with suppress(OSError):
                self._socket.settimeout(None)

    def close(self) -> None:
        """Close this end; the other one then receives EOFError."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def open_channel(host: str, port: int, token: str, seconds: float = _HELLO_SECONDS) -> Channel:
    """Connect to a supervisor; raises an OSError if it does not answer or has another token."""
    connection = socket.create_connection((host, port), timeout=seconds)
    try:
        connection.sendall(f"{token}\n".encode())
        if receive_bytes(connection, 1) != b"+":
            raise ConnectionRefusedError(f"{host}:{port} is not the supervisor of this job")
        connection.settimeout(None)
    except (EOFError, OSError) as error:
        connection.close()
        if isinstance(error, EOFError):
            raise ConnectionRefusedError(f"{host}:{port} is not the supervisor of this job") from error
        raise
    return Channel(connection)


def accept_channel(connection: socket.socket, token: str) -> Channel | None:
    """Answer a connection; None, after closing it, if the other end does not send the token in time."""
    try:
        connection.settimeout(_HELLO_SECONDS)
        hello = b""
        while not hello.endswith(b"\n") and len(hello) < _MAX_HELLO_BYTES:
            hello += receive_bytes(connection, 1)
        if hmac.compare_digest(hello.rstrip(b"\n"), token.encode()):
            connection.sendall(b"+")
            connection.settimeout(None)
            return Channel(connection)
    except (EOFError, OSError):
        pass
    connection.close()
    return None
