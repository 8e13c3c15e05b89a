"""Copies arrays that a user's function still holds after it returned them, since its next call may write to them.

What a function returns becomes columns without a copy. An array that nothing else refers to cannot change any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["References", "copy_held", "count_references"]

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
                bases[name] = _count_base(values)
    return References(sys.getrefcount(result), arrays, bases)


def _count_base(values: NDArray[Any]) -> int:
    base = values.base
    return sys.getrefcount(base)


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
