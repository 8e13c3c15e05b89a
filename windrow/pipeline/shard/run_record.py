"""Remembers a run after its shards are gone: what its timeline needs."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from windrow.core.errors import PlanError, StallError
from windrow.pipeline.executors.base import CoordinatorClient, Session
from windrow.pipeline.shard.consumer import SpanLog
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.timeline.lanes import merge_spans

if TYPE_CHECKING:
    from windrow.pipeline.timeline.timeline import Timeline

# for a shard that was dropped just now, and tells in another thread what it knows
_END_SECONDS = 10.0


class Reader(Protocol):
    """A shard's connection in this process."""

    def record_stats(self) -> RunStats | None:
        """Fetch the run's statistics and note them; None if the shard is not connected."""


class RunRecord:
    """What is known of one run in this process: its latest statistics, and the spans of the shards that are read here.

    It keeps no shard, session or coordinator alive.
    """

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._owner: Any = lambda: None
        # with each, what is set once it has ended
        self._readers: list[tuple[weakref.ref[Reader], threading.Event]] = []
        self._stats: RunStats | None = None
        self._spans: dict[str, SpanLog] = {}

    def set_owner(self, owner: LatestRun) -> None:
        """Note who may ask for the timeline when the shards are gone."""
        self._owner = weakref.ref(owner)

    def add_reader(self, reader: Reader, spans: SpanLog) -> threading.Event:
        """Note that this process reads a shard, whose spans grow; returns what to set when the reader has ended."""
        ended = threading.Event()
        self._readers = [one for one in self._readers if not one[1].is_set()]
        self._readers.append((weakref.ref(reader), ended))
        self._spans[spans.lane] = spans
        return ended

    def note_stats(self, stats: RunStats) -> None:
        """Note the latest statistics, with spans."""
        self._stats = stats

    def note_last_stats(self, client: CoordinatorClient) -> None:
        """Fetch the statistics for a reader that nobody closed, if a pipeline may still ask for them; in any thread."""
        if self._owner() is not None:
            with suppress(Exception):
                self.note_stats(client.run_stats(spans=True))

    def timeline(self) -> Timeline:
        """Return the timeline of the run so far."""
        from windrow.pipeline.timeline.timeline import Timeline

        with suppress(StallError):
            # without an answer, the latest statistics have to do
            self._refresh()
        stats = self._stats or RunStats()
        spans = merge_spans(stats.spans, [stats.trainer_spans, *self._spans.values()])
        if not spans:
            raise PlanError(
                "there is no timeline yet: nothing has been read. Read some batches first, without "
                "options(profile=False); of shards that other processes read, keep the list that split() returned, and "
                "call timeline() a second after they began"
            )
        return Timeline(spans)

    def _refresh(self) -> None:
        found = []
        for reference, ended in self._readers:
            reader = reference()
            if reader is None:
                ended.wait(_END_SECONDS)
            else:
                found.append(reader.record_stats())
        session = self._session()
        if session is not None and not any(stats is not None for stats in found):
            self._stats = session.run_stats(spans=True) or self._stats


class LatestRun:
    """The record of the latest run that a pipeline has started in this process; a copy elsewhere has none."""

    def __init__(self) -> None:
        self._record: RunRecord | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LatestRun, ()

    def begin(self, record: RunRecord) -> None:
        """Note that a run has been started."""
        record.set_owner(self)
        self._record = record

    def timeline(self) -> Timeline:
        """Return the timeline of that run."""
        if self._record is None:
            raise PlanError(
                "there is no timeline yet: this pipeline has not been read in this process. Read batches from it, or "
                "from shards that it was split into; each method that changes a pipeline returns another one"
            )
        return self._record.timeline()
