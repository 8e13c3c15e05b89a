"""Marks the memory of Arrow columns immutable, so that batches never expose it as writable.

Batches are writable where their Arrow buffers are mutable. An array that a user's function
returned can be an object that the function returns again, such as a constant. Marked
immutable, it is copied before anything writes to it.
"""

from __future__ import annotations

import pyarrow as pa

from windrow.core.variable_tensors import is_variable_tensor
from windrow.pipeline.delivery.to_numpy import fixed_dtype

__all__ = ["as_immutable"]


def as_immutable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Mark the fixed-width buffers of a column immutable, without a copy."""
    return pa.chunked_array([_immutable_array(chunk) for chunk in column.chunks], type=column.type)


def _immutable_array(array: pa.Array) -> pa.Array:
    kind = array.type
    if is_variable_tensor(kind):
        storage = array.storage
        mask = storage.is_valid().buffers()[1] if storage.null_count else None
        fields = [_immutable_array(storage.field(0)), storage.field(1)]
        made = pa.Array.from_buffers(storage.type, len(array), [mask], storage.null_count, children=fields)
        return pa.ExtensionArray.from_storage(kind, made)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _immutable_array(array.storage))
    children = []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        children = [_immutable_array(array.values)]
    elif fixed_dtype(kind) is None:
        return array  # converting it to NumPy always copies
    own = 1 if pa.types.is_fixed_size_list(kind) else 2
    buffers = [_immutable_buffer(buffer) for buffer in array.buffers()[:own]]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, children)


def _immutable_buffer(buffer: pa.Buffer | None) -> pa.Buffer | None:
    if buffer is None or not buffer.is_mutable:
        return buffer
    return pa.foreign_buffer(buffer.address, buffer.size, base=buffer)
