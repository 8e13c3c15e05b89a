"""windrow on Ray: shards streamed into trainer actors."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.peers.base import RayPeer, import_modules
from bench.peers.windrow_threads import IMPORTS, ShardEpochs, build_pipeline, estimate_memory
from bench.training.request import Request
from bench.training.trainer import Trainer, TrainerResult

_IMPORTS = ("torch", "windrow.pipeline.executors.ray.client", "windrow.pipeline.shard.shard")


class _TrainerActor:
    """A trainer in its own process; it takes no CPU slot, so that data tasks have all of them."""

    def __init__(self, request: Request, number: int) -> None:
        import_modules(*_IMPORTS)
        self._trainer = Trainer(request)
        self._trainer.join(number)

    def ready(self) -> bool:
        return True

    def train(self, source: ShardEpochs) -> str:
        """Train; returns a file with the result, whose keys would fill much of a small object store."""
        result = self._trainer.train(source)
        source.close()
        with tempfile.NamedTemporaryFile(prefix="windrow-bench-", delete=False) as file:
            pickle.dump(result, file)
        return file.name


class WindrowRay(RayPeer):
    """One trainer actor per shard; data tasks have the CPUs."""

    def prepare(self) -> None:
        import ray

        import_modules(*IMPORTS)
        super().prepare()
        request = self._request
        actor = ray.remote(num_cpus=0)(_TrainerActor)
        self._actors = [actor.remote(request, number) for number in range(request.trainers)]
        ray.get([trainer.ready.remote() for trainer in self._actors])

    def run(self) -> Sequence[TrainerResult]:
        import ray

        pipeline = build_pipeline(self._request, "ray")
        self.estimate = estimate_memory(pipeline, self._request)
        shards = pipeline.split(
            self._request.trainers, equal=self._request.equal, locality_hints=self._actors
        )
        sources = [ShardEpochs(shard, self._request) for shard in shards]
        running = [actor.train.remote(source) for actor, source in zip(self._actors, sources, strict=True)]
        written = list(map(Path, ray.get(running)))
        results = [pickle.loads(path.read_bytes()) for path in written]
        for path in written:
            path.unlink()
        if self._request.timeline is not None:
            pipeline.timeline().save(self._request.timeline)
        return results
