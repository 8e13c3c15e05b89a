"""Moves string and binary columns with the C kernels: offsets first, then one copy of the bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.native_libraries import address_of
from windrow.core.text_types import fits_offsets, offset_width
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.fixed_width import pack, validity_of

__all__ = ["can_move_text", "move_text"]


def can_move_text(kind: pa.DataType) -> bool:
    """Whether `move_text` supports a type; needs the C kernels."""
    return native.LIBRARY is not None and offset_width(kind) > 0


def move_text(
    arrays: Sequence[pa.Array],
    targets: Sequence[NDArray[np.uint32]],
    rows: slice,
    pool: BufferPool,
    name: str,
) -> pa.Array | None:
    """Scatter several arrays into one: row i of each goes to row ``targets[i]``, if that is in the range ``rows``.

    Every row in the range is the target of exactly one row. None if the text is too long for the type's offsets;
    a `SourceError` if offsets decrease, or are outside the text.
    """
    kind, count = arrays[0].type, rows.stop - rows.start
    width = offset_width(kind)
    if any(
        len(array) != len(array_targets) or array_targets.dtype != np.uint32
        for array, array_targets in zip(arrays, targets, strict=True)
    ):
        raise ValueError("each row needs a target, of 4 bytes")
    found = np.array([_addresses(array, width, name) for array in arrays], np.int64)
    offsets, texts, sizes = np.ascontiguousarray(found.T)
    counts = np.array([len(array) for array in arrays], np.int64)
    target_addresses = np.array([address_of(of_array) for of_array in targets], np.int64)
    out_offsets = pool.take(width * (count + 1))
    where = (target_addresses, counts, rows.start, count, out_offsets)
    total = native.LIBRARY.windrow_checked_offsets(width, len(arrays), offsets, sizes, *where)
    if total < 0:
        raise _make_corrupt_error(name, "offsets decrease, or are outside the text")
    if not fits_offsets(total, width):
        return None
    out = pool.take(total)
    native.LIBRARY.windrow_text(width, len(arrays), offsets, texts, *where, out)
    valid = _move_validity(arrays, targets, rows)
    nulls = 0 if valid is None else count - int(np.count_nonzero(valid))
    mask = None if valid is None else pa.py_buffer(pack(valid))
    return pa.Array.from_buffers(
        kind, count, [mask, pa.py_buffer(out_offsets), pa.py_buffer(out)], null_count=nulls
    )


def _addresses(array: pa.Array, width: int, name: str) -> tuple[int, int, int]:
    """The address of an array's first offset, the address of its text, and the bytes of the text."""
    _, offsets, text = array.buffers()
    if offsets is None or not len(array):
        return 0, 0, 0
    if offsets.size < width * (array.offset + len(array) + 1):
        raise _make_corrupt_error(name, f"its {offsets.size} bytes of offsets are too few")
    start = offsets.address + width * array.offset
    return (start, 0, 0) if text is None else (start, text.address, text.size)


def _make_corrupt_error(name: str, what: str) -> SourceError:
    return SourceError(
        f"the text of column {name!r} is corrupt: {what}. If it was read or mapped from a file, write the file "
        "again; if map_batches made it, call pyarrow's validate(full=True) there for details"
    )


def _move_validity(
    arrays: Sequence[pa.Array], targets: Sequence[NDArray[np.uint32]], rows: slice
) -> NDArray[np.uint8] | None:
    """(rows,) 1 for valid and 0 for null, scattered like the values; None if there are no nulls."""
    masks = [validity_of(array) for array in arrays]
    if all(mask is None for mask in masks):
        return None
    valid = np.ones(rows.stop - rows.start, np.uint8)
    for mask, row_targets in zip(masks, targets, strict=True):
        if mask is not None:
            here = (row_targets >= rows.start) & (row_targets < rows.stop)
            valid[row_targets[here] - np.uint32(rows.start)] = mask[here]
    return valid
