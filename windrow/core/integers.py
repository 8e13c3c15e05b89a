"""Accepts integers as users pass them: Python's, NumPy's, torch's, or whole floats."""

from __future__ import annotations

import numbers
import operator
from typing import Any

from windrow.core.errors import PlanError

# Above this floats cannot represent every integer, so a float may be a rounded neighbour of the intended one.
_EXACT_FLOATS = 2**53


def as_integer(value: Any) -> int | None:
    """Return the Python integer that a value unambiguously represents, or None.

    Booleans are not integers. A float counts if it is whole and its magnitude is at most 2**53.

    >>> as_integer(1e9), as_integer(2.5), as_integer(True), as_integer("3")
    (1000000000, None, None, None)
    """
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        number = float(value)
        return int(number) if number.is_integer() and abs(number) <= _EXACT_FLOATS else None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_count(value: object, name: str, more: str = "", *, least: int = 1) -> int:
    """Return ``value`` as an integer of ``least`` or more, or raise a PlanError; ``more`` names other valid values."""
    number = as_integer(value)
    if number is None or number < least:
        raise PlanError(f"{name}={value!r} must be an integer of {least} or more{more and ', ' + more}")
    return number
