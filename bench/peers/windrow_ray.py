"""windrow on Ray: shards streamed into trainer actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.account import Account
from bench.estimate import MemoryEstimate
from bench.peers.windrow_chain import ShardEpochs, build_chain, import_all, promise_memory
from bench.ray_session import start_ray, start_trainers, train_all
from bench.request import Request
from bench.store import StoreWatch
from bench.trainer import Progress, TrainerResult

__all__ = ["WindrowRay"]

_IMPORTS = ("torch", "windrow.pipeline.executors.ray.client", "windrow.pipeline.shard.shard")


class WindrowRay:
    """A trainer actor a shard; data tasks have the CPUs."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._actors: list[Any] = []
        self._store: StoreWatch | None = None
        self._estimate: MemoryEstimate | None = None

    def prepare(self) -> None:
        """Start Ray and the trainers, and import what reading needs."""
        import_all()
        self._store = start_ray(self._request)
        self._actors = start_trainers(self._request, _IMPORTS)

    def run(self) -> Sequence[TrainerResult]:
        """Plan, split, and let every actor consume its shard."""
        chain = build_chain(self._request, "ray")
        self._estimate = promise_memory(chain, self._request)
        shards = chain.split(self._request.trainers, equal=self._request.equal, locality_hints=self._actors)
        sources = [ShardEpochs(shard, self._request, tells_run=shard is shards[0]) for shard in shards]
        return train_all(self._actors, sources, self._progress)

    def account(self) -> Account:
        """The promise and the store; the actors' results bring the spans along."""
        return Account(estimate=self._estimate, store=self._store.end() if self._store else None)

    def close(self) -> None:
        """Stop Ray."""
        import ray

        ray.shutdown()
