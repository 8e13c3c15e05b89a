"""The consumer of a shard: its pace, what is done for it, and what it waits for."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

from windrow.pipeline.executors.consumer_pace import Pace
from windrow.pipeline.shard.span_log import SpanLog
from windrow.pipeline.shard.waits import Totals, WaitLog
from windrow.pipeline.statistics.phases import TrainerStats

__all__ = ["Consumer", "CoreTime"]


class CoreTime:
    """CPU seconds of a thread since it started to count."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start to count, in the calling thread."""
        self._thread, self._from = threading.get_ident(), time.thread_time()

    def seconds(self) -> float:
        """CPU seconds; 0 if another thread started to count."""
        # thread ids are reused, so another thread's smaller time must not give a negative difference
        return max(0.0, time.thread_time() - self._from) if self._thread == threading.get_ident() else 0.0


@dataclass(frozen=True)
class Consumer:
    """The consumer of a shard, across epochs: its pace, the latest spans of work done for it, and its waits."""

    shard: int
    # whether to measure what is done for it, and what it waits for
    profiled: bool = True
    pace: Pace = field(default_factory=Pace)
    spans: SpanLog = field(init=False)
    log: WaitLog = field(init=False)
    totals: Totals = field(init=False)

    def __post_init__(self) -> None:
        spans = SpanLog(self.shard, kept=self.profiled)
        object.__setattr__(self, "spans", spans)
        log = WaitLog(spans.add_conversion, kept=self.profiled)
        object.__setattr__(self, "log", log)
        totals = Totals(self.shard, log.take, log.divide_short, spans.add_wait)
        object.__setattr__(self, "totals", totals)

    def report(self) -> TrainerStats:
        """Return what the coordinator shall know: the totals, and the spans since the last report."""
        return replace(self.totals.stats(), spans=self.spans.take_unsent())
