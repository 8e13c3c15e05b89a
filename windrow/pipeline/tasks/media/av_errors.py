"""Opens audio and video in memory with PyAV, whose errors become a `MediaError`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from windrow.core.optional_dependencies import require
from windrow.pipeline.tasks.media.column_decoder import FIX, MediaError

Kind = Literal["audio", "video"]


def load_av(kind: Kind) -> Any:
    """Import PyAV."""
    return require("av", kind, f"decode_{kind}()")


@contextmanager
def open_stream(data: Any, kind: Kind) -> Iterator[tuple[Any, Any]]:
    """The container and its first stream of a kind."""
    av = load_av(kind)
    try:
        with av.open(io.BytesIO(data)) as container:
            streams = getattr(container.streams, kind)
            if not streams:
                raise MediaError(f"holds no {kind}: {FIX}")
            if streams[0].codec_context is None:
                raise MediaError(
                    "is of a codec that this FFmpeg cannot decode: install a PyAV with that decoder, or convert the "
                    f"{kind}",
                    of_bytes=False,
                )
            # rows are decoded side by side already
            streams[0].codec_context.thread_count = 1
            yield container, streams[0]
    except (MemoryError, MediaError):
        raise
    except Exception as error:
        raise MediaError(f"cannot be decoded as {kind} ({type(error).__name__}: {error}): {FIX}") from error
