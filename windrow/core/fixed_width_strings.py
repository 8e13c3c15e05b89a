"""Converts NumPy's fixed-width strings for Arrow without truncating them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["preserve_embedded_nuls"]


def preserve_embedded_nuls(array: NDArray[Any]) -> NDArray[Any]:
    r"""Convert an array with embedded NULs to objects: Arrow truncates ``U`` and ``S`` strings at the first NUL.

    Arrays without them are returned unchanged; trailing NULs are padding to NumPy too.

    Examples
    --------
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
