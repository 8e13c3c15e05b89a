"""A file on the local disk that is sent to a store once it is whole.

Streams of stores complete an upload when they are closed, after an error too, and what was begun
cannot be sent again. So a file is encoded here first: nothing is sent of one that fails, and what a
store refuses for a moment is sent again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from windrow.io.sinks.store import Fill

__all__ = ["spooled"]


@contextmanager
def spooled(fill: Fill) -> Iterator[str]:
    """The path of a local file that ``fill`` has written; it is gone afterwards."""
    handle, path = tempfile.mkstemp(prefix="windrow-write-")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
        yield path
    finally:
        os.unlink(path)
