"""Paths below a root."""

from __future__ import annotations

__all__ = ["join_path"]


def join_path(root: str, relative: str) -> str:
    """A path below a root, which may be empty or ``/``."""
    return f"{root.rstrip('/')}/{relative}" if root else relative
