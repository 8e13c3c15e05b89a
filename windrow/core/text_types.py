"""Properties of Arrow's text types: strings or bytes with offsets of 4 or 8 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

__all__ = ["fits_offsets", "offset_width", "text_array"]

_MAX_BYTES = 2**31 - 1


def offset_width(kind: pa.DataType) -> int:
    """Offset width of a text type in bytes; 0 for other types.

    Examples
    --------
    >>> import pyarrow as pa
    >>> offset_width(pa.string()), offset_width(pa.large_binary()), offset_width(pa.string_view())
    (4, 8, 0)
    """
    if pt.is_string(kind) or pt.is_binary(kind):
        return 4
    return 8 if pt.is_large_string(kind) or pt.is_large_binary(kind) else 0


def fits_offsets(text_bytes: int, width: int) -> bool:
    """Whether offsets of ``width`` bytes can address ``text_bytes`` of text."""
    return width == 8 or text_bytes <= _MAX_BYTES


def text_array(texts: Sequence[str]) -> pa.LargeStringArray:
    """Make an Arrow array of strings; ``pa.array`` would import pandas if installed, which takes at least 0.15 s.

    Raises
    ------
    UnicodeEncodeError
        If a string cannot be encoded as UTF-8.

    Examples
    --------
    >>> text_array(["a", "", "été"]).to_pylist()
    ['a', '', 'été']
    """
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return pa.LargeStringArray.from_buffers(
        len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), None, 0
    )
