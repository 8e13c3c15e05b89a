"""A stream that counts and digests what is written through it."""

from __future__ import annotations

import hashlib
import io
from typing import Any, BinaryIO

__all__ = ["DigestingStream"]


class DigestingStream(io.RawIOBase):
    """Passes bytes on to another stream, which stays open when this one is closed."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._digest = hashlib.sha256()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """The bytes that were written."""
        return self._bytes

    def hexdigest(self) -> str:
        """Their SHA-256."""
        return self._digest.hexdigest()

    def writable(self) -> bool:
        """True: it is there to be written."""
        return True

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._bytes

    def write(self, data: Any) -> int:
        """Write all of some bytes."""
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self._bytes += len(view)
        return len(view)
