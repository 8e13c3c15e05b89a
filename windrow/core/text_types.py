"""What Arrow's columns of text are like: strings or bytes, behind offsets of 4 or 8 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

__all__ = ["fits_offsets", "offset_width", "text_array"]

_MAX_BYTES = 2**31 - 1


def offset_width(kind: pa.DataType) -> int:
    """Bytes of an offset of a type of text; 0 for other types.

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
    """Whether offsets of a width can tell where so much text ends."""
    return width == 8 or text_bytes <= _MAX_BYTES


def text_array(texts: Sequence[str]) -> pa.LargeStringArray:
    """Strings for Arrow; ``pa.array`` would import pandas where it is installed, for 0.15 s and more.

    Raises
    ------
    UnicodeEncodeError
        If one cannot be written as UTF-8.

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
