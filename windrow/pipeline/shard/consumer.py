"""Who consumes a shard, over all epochs."""

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
        How much of its time it waits.
    spans
        What was done for it and when, the latest of it.
    """

    shard: int
    pace: Pace = field(default_factory=Pace)
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=_MAX_SPANS))
