"""Addresses inside columns that others have made."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.core.offsets import check_layout


def view_of(buffer: int, offset: int) -> pa.Array:
    """A text whose second value lies in some buffer, of which there is one, with 8 bytes."""
    views = np.zeros((2, 4), np.int32)
    views[1] = [8_000 if offset else 100, 0, buffer, offset]
    return pa.Array.from_buffers(pa.string_view(), 2, [None, pa.py_buffer(views), pa.py_buffer(b"abcdefgh")])


@pytest.mark.parametrize("column", [view_of(7, 0), view_of(0, 0), view_of(0, 9), view_of(-1, 0)])
@pytest.mark.parametrize("start", [0, 1])
def test_views_outside_of_their_buffers_raise(column: pa.Array, start: int) -> None:
    table = pa.table({"views": column.slice(start)})
    with pytest.raises(pa.ArrowInvalid, match="column 'views'"):
        check_layout(table)
    with pytest.raises(windrow.SourceError, match="views"):
        windrow.from_arrow(table)
