"""Columns of text and bytes go to their rows in one copy, where the kernels were compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.memory import BufferPool
from windrow.core.native import address_of
from windrow.core.text import fits_offsets, offset_width
from windrow.shuffle import kernels
from windrow.shuffle.plain import pack, validity_of

__all__ = ["can_move_text", "move_text"]


def can_move_text(kind: pa.DataType) -> bool:
    """Whether `move_text` moves a column of this type here."""
    return kernels.LIBRARY is not None and offset_width(kind) > 0


def move_text(
    arrays: Sequence[pa.Array],
    targets: Sequence[NDArray[np.uint32]],
    rows: slice,
    pool: BufferPool,
) -> pa.Array | None:
    """Make one column of several whose row i goes to row ``targets[i]``.

    Parameters
    ----------
    arrays
        Of one type; each with its targets.
    rows
        The targets that the column begins and ends with; others are left out. Every row
        in between is the target of one row.
    pool
        Where the text goes.

    Returns
    -------
    pyarrow.Array or None
        None where the text is longer than the type's offsets can tell.
    """
    kind, count = arrays[0].type, rows.stop - rows.start
    width = offset_width(kind)
    offsets, texts = zip(*(_addresses(array, width) for array in arrays), strict=True)
    counts = _words([len(array) for array in arrays])
    goes = _words([address_of(of_array) for of_array in targets])
    out_offsets = pool.take(width * (count + 1))
    starts, begins = _words(offsets), _words(texts)
    where = [address_of(each) for each in (starts, begins, goes, counts, out_offsets)]
    total = kernels.LIBRARY.windrow_text_offsets(
        width, len(arrays), where[0], where[2], where[3], rows.start, count, where[4]
    )
    if not fits_offsets(total, width):
        return None
    out = pool.take(total)
    kernels.LIBRARY.windrow_text(width, len(arrays), *where[:4], rows.start, count, where[4], address_of(out))
    valid = _move_validity(arrays, targets, rows)
    nulls = 0 if valid is None else count - int(np.count_nonzero(valid))
    mask = None if valid is None else pa.py_buffer(pack(valid))
    return pa.Array.from_buffers(
        kind, count, [mask, pa.py_buffer(out_offsets), pa.py_buffer(out)], null_count=nulls
    )


def _words(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _addresses(array: pa.Array, width: int) -> tuple[int, int]:
    """Where the offsets of an array's rows begin, and the text that they count from."""
    _, offsets, text = array.buffers()
    if offsets is None:
        return 0, 0
    return offsets.address + width * array.offset, 0 if text is None else text.address


def _move_validity(
    arrays: Sequence[pa.Array], targets: Sequence[NDArray[np.uint32]], rows: slice
) -> NDArray[np.uint8] | None:
    """(rows,) 1 where a value is and 0 where it is null; None where there are no nulls."""
    masks = [validity_of(array) for array in arrays]
    if all(mask is None for mask in masks):
        return None
    valid = np.ones(rows.stop - rows.start, np.uint8)
    for mask, goes in zip(masks, targets, strict=True):
        if mask is not None:
            here = (goes >= rows.start) & (goes < rows.stop)
            valid[goes[here] - np.uint32(rows.start)] = mask[here]
    return valid
