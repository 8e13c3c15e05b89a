"""Integers as users have them: Python's, NumPy's, or any other's."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["as_integer"]


def as_integer(value: Any) -> int | None:
    """Return the Python integer that a value is, or None; True and False are none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
