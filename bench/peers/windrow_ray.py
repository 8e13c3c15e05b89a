"""windrow on Ray: shards streamed into trainer actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.estimate import MemoryEstimate
from bench.object_store import ObjectStoreMonitor
from bench.peers.windrow_pipeline import ShardEpochs, build_pipeline, estimate_memory, import_all
from bench.ray_session import start_ray, start_trainers, train_all
from bench.request import Request
from bench.run_details import RunDetails
from bench.trainer import Progress, TrainerResult

__all__ = ["WindrowRay"]

_IMPORTS = ("torch", "windrow.pipeline.executors.ray.client", "windrow.pipeline.shard.shard")


class WindrowRay:
    """One trainer actor per shard; data tasks have the CPUs."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._actors: list[Any] = []
        self._store: ObjectStoreMonitor | None = None
        self._estimate: MemoryEstimate | None = None

    def prepare(self) -> None:
        """Start Ray and the trainers, and import what reading needs."""
        import_all()
        self._store = start_ray(self._request)
        self._actors = start_trainers(self._request, _IMPORTS)

    def run(self) -> Sequence[TrainerResult]:
        """Plan, split, and let every actor consume its shard."""
        pipeline = build_pipeline(self._request, "ray")
        self._estimate = estimate_memory(pipeline, self._request)
        shards = pipeline.split(
            self._request.trainers, equal=self._request.equal, locality_hints=self._actors
        )
        sources = [
            ShardEpochs(shard, self._request, includes_run_spans=shard is shards[0]) for shard in shards
        ]
        return train_all(self._actors, sources, self._progress)

    def details(self) -> RunDetails:
        """The memory estimate and the object store; the spans are part of the actors' results."""
        return RunDetails(estimate=self._estimate, store=self._store.end() if self._store else None)

    def close(self) -> None:
        """Stop Ray."""
        import ray

        ray.shutdown()
