"""windrow on Ray: shards streamed into trainer actors."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.base import RayPeer
from bench.peers.windrow_threads import ShardEpochs, build_pipeline, estimate_memory, import_all, sum_rows
from bench.training.request import Request
from bench.training.run_details import MemoryEstimate, RunDetails
from bench.training.trainer import Progress, Trainer, TrainerResult

_POLL_SECONDS = 1.0
_IMPORTS = ("torch", "windrow.pipeline.executors.ray.client", "windrow.pipeline.shard.shard")


class _TrainerActor:
    """A trainer in its own process; it takes no CPU slot, so that data tasks have all of them."""

    def __init__(self, request: Request, number: int) -> None:
        import importlib

        for name in _IMPORTS:
            importlib.import_module(name)
        self._seen = (0, 0)
        self._trainer = Trainer(request, self._note)
        self._trainer.join(number)

    def ready(self) -> bool:
        return True

    def seen(self) -> tuple[int, int]:
        return self._seen

    def train(self, source: ShardEpochs) -> str:
        """Train; returns a file with the result, whose keys would fill much of a small object store."""
        result = self._trainer.train(source)
        result.tasks = source.close()
        with tempfile.NamedTemporaryFile(prefix="windrow-bench-", delete=False) as file:
            pickle.dump(result, file)
        return file.name

    def _note(self, epoch: int, rows: int) -> None:
        self._seen = (epoch, rows)


def _take_result(path: Path) -> TrainerResult:
    with path.open("rb") as file:
        result: TrainerResult = pickle.load(file)
    path.unlink()
    return result


class WindrowRay(RayPeer):
    """One trainer actor per shard; data tasks have the CPUs."""

    def __init__(self, request: Request, progress: Progress) -> None:
        super().__init__(request, progress)
        self._actors: list[Any] = []
        self._estimate: MemoryEstimate | None = None

    def prepare(self) -> None:
        import ray

        import_all()
        super().prepare()
        request = self._request
        actor = ray.remote(num_cpus=int(request.computing), max_concurrency=2)(_TrainerActor)
        self._actors = [actor.remote(request, number) for number in range(request.trainers)]
        ray.get([trainer.ready.remote() for trainer in self._actors])

    def run(self) -> Sequence[TrainerResult]:
        import ray

        pipeline = build_pipeline(self._request, "ray")
        self._estimate = estimate_memory(pipeline, self._request)
        shards = pipeline.split(
            self._request.trainers, equal=self._request.equal, locality_hints=self._actors
        )
        sources = [ShardEpochs(shard, self._request, reports_tasks=shard is shards[0]) for shard in shards]
        running = [actor.train.remote(source) for actor, source in zip(self._actors, sources, strict=True)]
        waiting = list(running)
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_SECONDS)
            if waiting:
                self._progress(*sum_rows(ray.get([actor.seen.remote() for actor in self._actors])))
        results = [_take_result(Path(path)) for path in ray.get(running)]
        if self._request.timeline is not None:
            pipeline.timeline().save(self._request.timeline)
        return results

    def details(self) -> RunDetails:
        return RunDetails(self._estimate, super().details().store)
