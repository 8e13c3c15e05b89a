"""Counts the bytes that Arrow data references."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["arrow_bytes"]


def arrow_bytes(data: pa.Table | pa.RecordBatch | pa.ChunkedArray | pa.Array) -> int:
    """Return ``data.nbytes``, the bytes of the rows that are referenced, with every pyarrow.

    Before pyarrow 24, ``nbytes`` does not support views (``string_view``, ``list_view``). There the
    buffers of such a column are counted whole, as newer versions count the text that its views point to.

    >>> arrow_bytes(pa.table({"n": [1, 2, 3]}).slice(1))
    16
    """
    try:
        return int(data.nbytes)
    except pa.ArrowTypeError:
        if isinstance(data, (pa.Table, pa.RecordBatch)):
            return sum(map(arrow_bytes, data.columns))
        return int(data.get_total_buffer_size())
