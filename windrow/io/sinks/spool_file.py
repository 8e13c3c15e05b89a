"""Encode a file on local disk before it is uploaded, so that failures upload nothing and uploads can be retried.

Upload streams complete an upload when they are closed, even after an error, and cannot be rewound
for a retry. Encoding locally first means that a failed encoding uploads nothing, and that transient
storage errors can be retried.
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
    """The path of a local temporary file that ``fill`` has written; it is removed on exit."""
    handle, path = tempfile.mkstemp(prefix="windrow-write-")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
        yield path
    finally:
        os.unlink(path)
