"""Ray Data's ``random_shuffle`` split to trainer actors, reading the files again every epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.peers.windrow_ray import make_collate, start_ray, start_trainers, train_all
from bench.system.ray_cluster import ObjectStoreMonitor
from bench.training.request import Request
from bench.training.run_details import RunDetails, Span
from bench.training.trainer import Progress, TrainerResult

__all__ = ["RayShuffleSplit"]


class RayShuffleSplit:
    """``streaming_split(n)`` into actors; each epoch of a split iterator runs the pipeline again."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self._actors: list[Any] = []
        self._store: ObjectStoreMonitor | None = None

    def prepare(self) -> None:
        """Start Ray and the trainers."""
        self._store = start_ray(self._request)
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        self._actors = start_trainers(self._request, ["torch", "ray.data"])

    def run(self) -> Sequence[TrainerResult]:
        """Read, shuffle and deliver once per epoch."""
        import ray.data

        dataset = ray.data.read_parquet(list(self._request.paths), columns=list(self._request.columns))
        shards = dataset.random_shuffle().streaming_split(
            self._request.trainers, equal=self._request.equal, locality_hints=None
        )
        sources = [_SplitEpochs(shard, self._request) for shard in shards]
        return train_all(self._actors, sources, self._progress)

    def details(self) -> RunDetails:
        """Report the use of the object store."""
        return RunDetails(store=self._store.end() if self._store else None)

    def close(self) -> None:
        """Stop Ray."""
        import ray

        ray.shutdown()


class _SplitEpochs:
    def __init__(self, shard: Any, request: Request) -> None:
        self._shard = shard
        self._request = request

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._request.epochs):
            yield self._shard.iter_torch_batches(
                batch_size=self._request.batch_size, **make_collate(self._request)
            )

    def spans(self) -> Sequence[Span]:
        return []
