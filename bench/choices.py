"""Chooses names on the command line."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["choose_names"]


def choose_names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """The names of a comma-separated list, in the order of the known ones; a ValueError names an unknown one."""
    names: list[str] = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{option} {unknown[0]}: choose from {', '.join(known)}")
    return [name for name in known if name in names]
