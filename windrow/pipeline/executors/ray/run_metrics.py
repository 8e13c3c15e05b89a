"""Metrics of a run, through Ray's own: Prometheus scrapes them where it scrapes Ray."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ray.util.metrics import Counter, Gauge

from windrow.pipeline.statistics.stats import RunStats

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metric:
    """A metric: its name for Ray, what it is, the tags beside ``run``, and whether it only grows.

    Where shards have replicas, those with the tag ``shard`` also have ``replica``.
    """

    name: str
    description: str
    tags: tuple[str, ...] = ()
    grows: bool = True

    @property
    def exported_name(self) -> str:
        """The name in Prometheus."""
        return f"ray_{self.name}_total" if self.grows else f"ray_{self.name}"


METRICS = {
    metric.name: metric
    for metric in (
        Metric("windrow_rows", "Rows that trainers have received.", ("shard",)),
        Metric("windrow_bytes", "Bytes in memory that trainers have received.", ("shard",)),
        Metric("windrow_batches", "Batches that trainers have received.", ("shard",)),
        Metric("windrow_work_seconds", "Seconds that trainers spent between batches.", ("shard",)),
        Metric("windrow_wait_seconds", "Seconds that trainers waited, by what for.", ("shard", "cause")),
        Metric("windrow_tasks", "Tasks finished."),
        Metric("windrow_task_seconds", "Seconds that tasks took, by phase.", ("phase",)),
        Metric("windrow_source_rows", "Rows of a mixture's source that trainers have received.", ("source",)),
        Metric("windrow_source_tasks", "Tasks of a mixture's source.", ("source",)),
        Metric("windrow_source_task_seconds", "Seconds that these took.", ("source",)),
        Metric("windrow_source_wait_seconds", "Seconds that trainers waited for it alone.", ("source",)),
        Metric("windrow_storage_requests", "Requests to object storage."),
        Metric("windrow_storage_bytes", "Bytes requested from object storage."),
        Metric("windrow_retries", "Requests repeated after transient errors."),
        Metric("windrow_cache_hits", "Blocks found in the cache."),
        Metric("windrow_cache_misses", "Blocks read from the source."),
        Metric("windrow_dropped_windows", "Windows dropped while a shard still needed them."),
        Metric("windrow_held_bytes", "Bytes of map outputs that are held.", grows=False),
        Metric("windrow_memory_limit_bytes", "Limit of the bytes that are held.", grows=False),
        Metric("windrow_cache_bytes", "Bytes of cached blocks.", grows=False),
        Metric("windrow_skipped_blocks", "Corrupt blocks that are skipped.", grows=False),
        Metric("windrow_skipped_rows", "Stored rows of these blocks.", grows=False),
    )
}


class RunMetrics:
    """Publishes the statistics of one run, if they are ``published``; ``run`` tells runs apart in the tags."""

    def __init__(self, run: str, *, published: bool = True) -> None:
        self._run = run
        self._published: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._metrics: dict[str, Any] = {}
        self._is_on = published

    def update(self, stats: RunStats) -> None:
        """Publish the gauges, and what counters have grown by.

        An error of Ray's metrics ends the metrics, and not the run.
        """
        if not self._is_on:
            return
        try:
            for name, tags, value in read_values(stats):
                self._publish(METRICS[name], tags, value)
        except Exception:
            self._is_on = False
            logger.warning("metrics of run %s are not published any more", self._run, exc_info=True)

    def _publish(self, metric: Metric, tags: dict[str, str], value: float) -> None:
        key = metric.name, tuple(sorted(tags.items()))
        before, self._published[key] = self._published.get(key), value
        # Ray exports a counter until the process ends, but drops a gauge that was not set for 20 seconds
        if metric.grows and before == value:
            return
        if metric.name not in self._metrics:
            made = (Counter if metric.grows else Gauge)(metric.name, metric.description, ("run", *tags))
            self._metrics[metric.name] = made
        every = {"run": self._run, **tags}
        if not metric.grows:
            self._metrics[metric.name].set(value, every)
            return
        # after a failure, a run counts from zero again
        added = value - before if before is not None and before < value else value
        if added > 0:
            self._metrics[metric.name].inc(added, every)


def read_values(stats: RunStats) -> Iterator[tuple[str, dict[str, str], float]]:
    """What statistics say about each metric: its name, its tags beside ``run``, and the value since the run began."""
    for trainer in stats.trainers:
        shard = {"shard": str(trainer.shard)}
        if trainer.replica:
            shard["replica"] = trainer.replica
        yield "windrow_rows", shard, trainer.rows
        yield "windrow_bytes", shard, trainer.bytes
        yield "windrow_batches", shard, trainer.batches
        yield "windrow_work_seconds", shard, trainer.work_seconds
        for cause, seconds in trainer.waits.items():
            yield "windrow_wait_seconds", {**shard, "cause": cause}, seconds
    yield "windrow_tasks", {}, stats.tasks
    for phase, seconds in stats.profile.phases.items():
        yield "windrow_task_seconds", {"phase": phase}, seconds
    for source in stats.sources:
        tag = {"source": source.name}
        yield "windrow_source_rows", tag, source.rows
        yield "windrow_source_tasks", tag, source.tasks
        yield "windrow_source_task_seconds", tag, source.task_seconds
        yield "windrow_source_wait_seconds", tag, source.wait_seconds
    yield "windrow_storage_requests", {}, stats.profile.requests
    yield "windrow_storage_bytes", {}, stats.profile.requested_bytes
    yield "windrow_retries", {}, stats.profile.retries
    yield "windrow_cache_hits", {}, stats.cache_hits
    yield "windrow_cache_misses", {}, stats.cache_misses
    yield "windrow_dropped_windows", {}, stats.dropped_windows
    yield "windrow_held_bytes", {}, stats.held_bytes
    yield "windrow_memory_limit_bytes", {}, stats.memory_bytes
    yield "windrow_cache_bytes", {}, stats.cache_bytes
    yield "windrow_skipped_blocks", {}, len(stats.corrupt_blocks)
    yield "windrow_skipped_rows", {}, stats.corrupt_rows
