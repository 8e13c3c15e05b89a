"""How long is waited before somebody is told."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Waiting"]


@dataclass(frozen=True)
class Waiting:
    """How long a consumer waits before it warns, and before it gives up."""

    warn_seconds: float = 60.0
    fail_seconds: float = 1800.0
