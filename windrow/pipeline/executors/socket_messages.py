"""Pickled messages over a socket, each after its length."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!Q")
_PART_BYTES = 2**20


def send_message(connection: socket.socket, message: Any) -> None:
    """Send a message; raises an OSError if the other side is gone."""
    data = pickle.dumps(message, protocol=5)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_message(connection: socket.socket) -> Any:
    """Wait for a message; raises EOFError if the other side is gone."""
    (size,) = _LENGTH.unpack(receive_bytes(connection, _LENGTH.size))
    return pickle.loads(receive_bytes(connection, size))


def receive_bytes(connection: socket.socket, size: int) -> bytes:
    """Wait for so many bytes; raises EOFError if the other side is gone."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), _PART_BYTES))
        if not part:
            raise EOFError("the other side has closed the connection")
        parts += part
    return bytes(parts)
