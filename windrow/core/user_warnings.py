"""Warnings that point at the line of the user's code that led to them, however deep in windrow they are found."""

from __future__ import annotations

import sys
import warnings

from windrow.core.tracebacks import is_internal


def warn_user(text: str) -> None:
    """Issue a RuntimeWarning for the innermost line outside of windrow, or the one here if there is none."""
    frame, level = sys._getframe(1), 2
    # as skip_file_prefixes of Python 3.12, but what lies between two frames of windrow is no user's code either
    while frame is not None and is_internal(str(frame.f_globals.get("__name__", ""))):
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    warnings.warn(text, RuntimeWarning, stacklevel=2 if frame is None else level)
