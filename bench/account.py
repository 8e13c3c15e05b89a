"""What a system tells about its own run, beside what its trainers saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.estimate import MemoryEstimate
from bench.spans import Span
from bench.store import StoreUse

__all__ = ["Account"]


@dataclass(frozen=True)
class Account:
    """Spans for the timeline, the promise where one was given, and Ray's store where there is one."""

    spans: Sequence[Span] = ()
    estimate: MemoryEstimate | None = None
    store: StoreUse | None = None
