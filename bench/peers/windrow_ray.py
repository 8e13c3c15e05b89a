"""windrow on Ray: shards streamed into trainer actors."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.peers.base import RayPeer
from bench.peers.windrow_threads import ShardEpochs, build_pipeline, estimate_memory, import_all
from bench.training.request import Request
from bench.training.run_details import MemoryEstimate, RunDetails, Span
from bench.training.trainer import Progress, Trainer, TrainerResult

_POLL_SECONDS = 1.0
_IMPORTS = ("torch", "windrow.pipeline.executors.ray.client", "windrow.pipeline.shard.shard")


class EpochSource(Protocol):
    """Epochs of batches for a trainer actor, picklable before iteration."""

    def __iter__(self) -> Any:
        """Iterate over epochs, each an iterable of batches."""

    def spans(self) -> Sequence[Span]:
        """Spans of the source's own work, after the last epoch."""
        ...


class _TrainerActor:
    """A trainer in its own process; it takes no CPU slot, so that data tasks have all of them."""

    def __init__(self, request: Request, number: int, imports: Sequence[str]) -> None:
        import importlib

        for name in imports:
            importlib.import_module(name)
        self._seen = (0, 0)
        self._trainer = Trainer(request, f"trainer {number}", self._note)
        self._trainer.join(number)

    def ready(self) -> bool:
        return True

    def seen(self) -> tuple[int, int]:
        return self._seen

    def train(self, source: EpochSource) -> str:
        """Train; returns a file with the result, whose keys would fill much of a small object store."""
        result = self._trainer.train(source)
        result.spans.extend(source.spans())
        with tempfile.NamedTemporaryFile(prefix="windrow-bench-", delete=False) as file:
            pickle.dump(result, file)
        return file.name

    def _note(self, epoch: int, rows: int) -> None:
        self._seen = (epoch, rows)


def start_trainers(request: Request, imports: Sequence[str]) -> list[Any]:
    """Start the trainer actors and wait until they have imported what they need."""
    import ray

    actor = ray.remote(num_cpus=int(request.computing), max_concurrency=2)(_TrainerActor)
    actors = [actor.remote(request, number, imports) for number in range(request.trainers)]
    ray.get([trainer.ready.remote() for trainer in actors])
    return actors


def train_all(
    actors: Sequence[Any], sources: Iterable[EpochSource], progress: Progress
) -> list[TrainerResult]:
    """Let every actor consume its source; report the rows of the slowest trainer's epoch."""
    import ray

    running = [actor.train.remote(source) for actor, source in zip(actors, sources, strict=True)]
    waiting = list(running)
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_SECONDS)
        if waiting:
            progress(*_sum_rows(ray.get([actor.seen.remote() for actor in actors])))
    return [_take_result(Path(path)) for path in ray.get(running)]


def _take_result(path: Path) -> TrainerResult:
    with path.open("rb") as file:
        result: TrainerResult = pickle.load(file)
    path.unlink()
    return result


def _sum_rows(seen: Sequence[tuple[int, int]]) -> tuple[int, int]:
    epoch = min(number for number, _ in seen)
    return epoch, sum(rows for number, rows in seen if number == epoch)


class WindrowRay(RayPeer):
    """One trainer actor per shard; data tasks have the CPUs."""

    def __init__(self, request: Request, progress: Progress) -> None:
        super().__init__(request, progress)
        self._actors: list[Any] = []
        self._estimate: MemoryEstimate | None = None

    def prepare(self) -> None:
        """Start Ray and the trainers, and import what reading needs."""
        import_all()
        super().prepare()
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
        return RunDetails(estimate=self._estimate, store=self._store.end())
