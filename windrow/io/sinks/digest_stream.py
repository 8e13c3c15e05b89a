"""A stream that counts the bytes written through it, and computes their SHA-256."""

from __future__ import annotations

import hashlib
import io
from typing import Any, BinaryIO

__all__ = ["DigestingStream"]


class DigestingStream(io.RawIOBase):
    """Forwards bytes to another stream, which stays open when this one is closed."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._digest = hashlib.sha256()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """The number of bytes written."""
        return self._bytes

    def hexdigest(self) -> str:
        """The SHA-256 of these bytes."""
        return self._digest.hexdigest()

    def writable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """The position of the next byte."""
        return self._bytes

    def write(self, data: Any) -> int:
        """Write all bytes of ``data``."""
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self._bytes += len(view)
        return len(view)
