"""Timeouts after which a waiting consumer warns, and fails."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Waiting"]


@dataclass(frozen=True)
class Waiting:
    """Seconds that a consumer waits before it warns, and before it raises `StallError`."""

    warn_seconds: float = 60.0
    fail_seconds: float = 1800.0
