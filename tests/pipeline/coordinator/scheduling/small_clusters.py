"""Small simulated clusters of a few windows."""

from __future__ import annotations

from typing import Any

from tests.pipeline.coordinator.scheduling.simulation import Chunk, Cluster


def cluster(*windows: int, parts: int = 2, shards: int = 1, known: bool = True, **options: Any) -> Cluster:
    """Windows of the given bytes, in equal parts of five rows."""
    shape = tuple(tuple(Chunk(5, size // parts, known) for _ in range(parts)) for size in windows)
    defaults: dict[str, Any] = {
        "epochs": 1,
        "slots": 2,
        "memory_bytes": 20,
        "prefetch_windows": 1,
        "crosses_epochs": True,
        "slices": 1,
    }
    return Cluster(shape, shards=shards, **{**defaults, **options})


def run_everything(cluster: Cluster) -> None:
    while cluster.running:
        cluster.finish(cluster.running[0])


def started(cluster: Cluster) -> list[tuple[int, int, int]]:
    return [(work.epoch, work.window, work.part) for work in cluster.runs]
