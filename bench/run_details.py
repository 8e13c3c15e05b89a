"""What a system itself reports about its run, in addition to the measurements of its trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.estimate import MemoryEstimate
from bench.object_store import ObjectStoreUse
from bench.spans import Span

__all__ = ["RunDetails"]


@dataclass(frozen=True)
class RunDetails:
    """Spans for the timeline, windrow's memory estimate, and the use of Ray's object store."""

    spans: Sequence[Span] = ()
    estimate: MemoryEstimate | None = None
    store: ObjectStoreUse | None = None
