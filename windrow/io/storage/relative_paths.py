"""Joins a root and a relative path."""

from __future__ import annotations

__all__ = ["join_path"]


def join_path(root: str, relative: str) -> str:
    """Join a relative path to a root, which can be empty or ``/``."""
    return f"{root.rstrip('/')}/{relative}" if root else relative
