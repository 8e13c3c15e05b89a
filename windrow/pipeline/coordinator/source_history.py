"""What the tasks of each source of a mixture did, and how long trainers waited for which source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.plan.mixture_legs import MixtureLegs
from windrow.pipeline.statistics.phases import Span, TrainerStats
from windrow.pipeline.statistics.stats import SourceRun

# The latest tasks. Trainers report waits about once a second.
_RECENT_TASKS = 4096


class SourceHistory:
    """By source of a mixture: its tasks, and the waits that it caused."""

    def __init__(self, legs: MixtureLegs) -> None:
        self._legs = legs
        self.names = legs.mixture.names
        count = len(self.names)
        self._tasks, self._seconds, self._waits = [0] * count, [0.0] * count, [0.0] * count
        self._recent: deque[tuple[Key, int, float]] = deque(maxlen=_RECENT_TASKS)

    def finish(self, key: Key, start: float, stop: float) -> str:
        """Note that a task of a window has ended; returns the source's name."""
        needed = self._legs.leg(key[0]).windows
        # a late task can be one of an earlier plan
        if key[1] >= len(needed):
            return ""
        source = needed[key[1]].source
        self._tasks[source] += 1
        self._seconds[source] += stop - start
        self._recent.append((key, source, stop))
        return self.names[source]

    def note_waits(self, spans: Iterable[Span]) -> None:
        """Note how long a trainer waited for rounds: for the source whose task ended last."""
        for span in spans:
            if span.kind != "wait" or not self._legs.is_open(span.epoch):
                continue
            needed = set(self._legs.leg(span.epoch).rounds.windows(span.window))
            for key, source, stop in reversed(self._recent):
                if stop < span.start_time:
                    break
                if stop <= span.stop_time and key[0] == span.epoch and key[1] in needed:
                    self._waits[source] += span.stop_time - span.start_time
                    break

    def runs(self, trainers: Iterable[TrainerStats]) -> tuple[SourceRun, ...]:
        """What was done for each source; ``trainers`` tell how far they are."""
        epoch, row = max((trainer.place for trainer in trainers if trainer.place is not None), default=(0, 0))
        leg = self._legs.leg(epoch)
        rows = leg.counts_at(min(max(row, leg.row), leg.stop)).tolist()
        return tuple(map(SourceRun, self.names, rows, self._tasks, self._seconds, self._waits))
