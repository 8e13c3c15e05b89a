"""Keeps batches apart from memory of the user's functions: copies arrays they may write to, and marks others immutable.

What a function returns becomes columns without a copy. An array that nothing else refers to cannot change any more.
One that the function still holds is copied, since its next call may write to it.

Batches are writable where their Arrow buffers are mutable. An array that a user's function returned can be an object
that the function returns again, such as a constant. Marked immutable, it is copied before anything writes to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.variable_tensors import is_variable_tensor
from windrow.pipeline.delivery.to_numpy import fixed_dtype

# A view that keeps more memory than this many times its own is copied too.
_MAX_KEPT = 2


class References(NamedTuple):
    """How many references there are to a dict, to each of its arrays, and to the array that each is a view of."""

    result: int
    arrays: dict[str, int]
    bases: dict[str, int]


def count_references(result: Mapping[str, Any]) -> References:
    """Count references. Call it with the variable that holds what a function returned."""
    arrays, bases = {}, {}
    for name, values in result.items():
        if isinstance(values, np.ndarray):
            arrays[name] = sys.getrefcount(values)
            if isinstance(values.base, np.ndarray):
                bases[name] = sys.getrefcount(values.base)
    return References(sys.getrefcount(result), arrays, bases)


def _count_fresh(make: Callable[[], dict[str, Any]]) -> References:
    """What a function gives that holds nothing; the interpreter's own references differ between versions."""
    result = make()
    return count_references(result)


_FRESH = _count_fresh(lambda: {"whole": np.empty(1), "view": np.empty(2)[:1]})


def copy_held(
    result: Mapping[str, Any], counted: References, batch: object, own: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return the result of a function, with copies of the arrays that may change.

    Parameters
    ----------
    counted
        The references to ``result`` when the function had returned.
    batch
        What the function got, and perhaps returned; its caller has a reference too.
    own
        The arrays that it got, which nothing writes to.
    """
    unchanged = {id(array) for array in own.values()}
    is_held = counted.result - (result is batch) > _FRESH.result
    return {
        name: values if id(values) in unchanged else _copy_if(is_held, name, values, counted)
        for name, values in result.items()
    }


def _copy_if(is_held: bool, name: str, values: Any, counted: References) -> Any:
    if not isinstance(values, np.ndarray):
        # the memory of a tensor can belong to others without a reference that can be counted
        return values.clone() if hasattr(values, "clone") and hasattr(values, "numpy") else values
    if values.dtype.hasobject:
        return values
    base = values.base
    if is_held or counted.arrays[name] > _FRESH.arrays["whole"]:
        return values.copy()
    if base is None:
        return values
    is_kept = isinstance(base, np.ndarray) and base.base is None and name in counted.bases
    if is_kept and counted.bases[name] <= _FRESH.bases["view"] and base.nbytes <= _MAX_KEPT * values.nbytes:
        return values
    return values.copy()


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
