"""Arrays that Hypothesis draws for formats of arrays, and the comparison with what windrow delivers."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

__all__ = ["TEXTS", "draw_arrays", "same_values"]

_NUMBERS = ["?", "i1", ">i2", "i4", ">i8", "u1", "u8", "f2", ">f4", "f8"]
# HDF5 ends text at a NUL
TEXTS = st.text("aé漢", max_size=4)


def draw_arrays(rows: int, dtypes: tuple[str, ...] = ()) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays of up to two more dimensions, of numbers and of further dtypes."""
    shapes = st.lists(st.integers(0, 3), max_size=2).map(lambda inner: (rows, *inner))
    made = st.sampled_from([*_NUMBERS, *dtypes])
    return made.flatmap(lambda dtype: npst.arrays(dtype, shapes, elements=_elements(dtype)))


def _elements(dtype: str) -> Any:
    if dtype[0] == "U":
        return st.text("aé漢", max_size=3)
    return st.binary(max_size=3).map(lambda data: data.replace(b"\0", b"x")) if dtype[0] == "S" else None


def same_values(found: NDArray[Any], stored: NDArray[Any]) -> None:
    """Check a delivered column against the library's values."""
    assert found.shape == stored.shape
    if stored.dtype.kind in "USOT":
        assert _plain(found) == _plain(stored)
    else:
        assert found.dtype == stored.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, stored)


def _plain(values: Any) -> Any:
    """Nested lists of Python values."""
    if isinstance(values, np.ndarray):
        return [_plain(value) for value in values]
    if isinstance(values, (list, tuple)):
        return [_plain(value) for value in values]
    return values.item() if isinstance(values, np.generic) else values
