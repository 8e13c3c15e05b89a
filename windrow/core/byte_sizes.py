"""Parses byte sizes that users write (``"64MiB"``), and formats them."""

from __future__ import annotations

import re
from fractions import Fraction

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer

_UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
}
_BY_FOLDED_NAME = {name.casefold(): factor for name, factor in _UNITS.items()}
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)\s*", re.ASCII)


def parse_bytes(value: float | str, name: str) -> int:
    """Turn a whole number of bytes (``1e9`` too) or a text like ``"64MiB"`` (2**20) or ``"64MB"`` (10**6) into bytes.

    Anything else is a `PlanError`; ``name`` is the argument's name in it.

    >>> parse_bytes("1.5GiB", "bytes_per_window")
    1610612736
    >>> parse_bytes("64", "target_block_bytes")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    windrow.core.errors.PlanError: target_block_bytes='64' has no unit: write '64MiB' or '64MB', ...
    """
    size = _parse_text(value, name) if isinstance(value, str) else as_integer(value)
    if size is None:
        raise PlanError(
            f"{name}={value!r} is not a size: give a whole number of bytes or a string like '64MiB'"
        )
    if size <= 0:
        raise PlanError(f"{name}={value!r} must be at least 1 byte")
    return size


def _parse_text(text: str, name: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise PlanError(
            f"{name}={text!r} is not a size: write a positive number and a unit, like '64MiB' or '64MB'"
        )
    number, unit = match["number"], match["unit"]
    if not unit:
        raise PlanError(
            f"{name}={text!r} has no unit: write '{number}MiB' or '{number}MB', "
            f"or the integer {number} for bytes"
        )
    factor = _BY_FOLDED_NAME.get(unit.casefold())
    if factor is None:
        raise PlanError(f"{name}={text!r} has the unknown unit {unit!r}: use one of {', '.join(_UNITS)}")
    return int(Fraction(number) * factor)


def format_bytes(size: float) -> str:
    """Format a number of bytes in binary units.

    >>> format_bytes(8 * 2**30)
    '8.0 GiB'
    >>> format_bytes(512)
    '512 B'
    """
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1000:
            break
        value, unit = value / 1024, larger
    if unit == "B":
        return f"{value:.0f} B"
    digits = 2 if abs(value) < 10 and unit in ("TiB", "PiB") else 1
    return f"{value:.{digits}f} {unit}"
