"""What is known of a shard's consumer across epochs: its pace, and spans of work done for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from windrow.pipeline.coordinator.stats import Span
from windrow.pipeline.shard.consumer_pace import Pace

__all__ = ["Consumer"]

_MAX_SPANS = 20_000


@dataclass(frozen=True)
class Consumer:
    """The consumer of a shard in this process.

    Attributes
    ----------
    shard
        The shard's number.
    pace
        Whether it mostly computes or waits.
    spans
        The latest spans of work done for it, for the timeline.
    """

    shard: int
    pace: Pace = field(default_factory=Pace)
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=_MAX_SPANS))
