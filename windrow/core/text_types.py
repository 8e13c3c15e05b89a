"""Text (strings or bytes) in Arrow, with offsets of 4 or 8 bytes, and from NumPy's fixed-width strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

_MAX_BYTES = 2**31 - 1


def offset_width(kind: pa.DataType) -> int:
    """Offset width of a text type in bytes; 0 for other types.

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

    >>> text_array(["a", "", "été"]).to_pylist()
    ['a', '', 'été']
    """
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return pa.LargeStringArray.from_buffers(
        len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)), None, 0
    )


def preserve_embedded_nuls(array: NDArray[Any]) -> NDArray[Any]:
    r"""Convert an array with embedded NULs to objects: Arrow truncates ``U`` and ``S`` strings at the first NUL.

    Arrays without them are returned unchanged; trailing NULs are padding to NumPy too.

    >>> preserve_embedded_nuls(np.array(["ab", "c"])).dtype
    dtype('<U2')
    >>> preserve_embedded_nuls(np.array(["a\0b", "c"]))
    array(['a\x00b', 'c'], dtype=object)
    """
    if array.dtype.kind not in "US" or not array.size:
        return array
    codes = np.ascontiguousarray(array).view(np.uint32 if array.dtype.kind == "U" else np.uint8)
    codes = codes.reshape(array.size, -1)
    inside = (codes[:, :-1] == 0) & (codes[:, 1:] != 0)
    return array.astype(object) if inside.any() else array
