"""Parses sizes on the command line."""

from __future__ import annotations

import re

__all__ = ["read_size"]

_UNITS = {f"{prefix}B": 1000**power for power, prefix in enumerate(("", "K", "M", "G", "T"))}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)}


def read_size(text: str, option: str) -> int:
    """Parse a size like "1.4GB" or "256MiB".

    Raises
    ------
    ValueError
        If it is not a positive number with a unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    factor = next((size for unit, size in _UNITS.items() if match and unit.lower() == match[2].lower()), None)
    if match is None or factor is None or float(match[1]) <= 0:
        raise ValueError(f"{option} {text} is not a size: write a number and a unit, like 1.4GB or 256MiB")
    return round(float(match[1]) * factor)
