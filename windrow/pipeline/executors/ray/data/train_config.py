"""Hands the shards of pipelines to the workers of Ray Train."""

from __future__ import annotations

from typing import Any

from ray.train import DataConfig

from windrow.shuffle.order.shard_assignment import Equal

_PACKAGE = __name__.partition(".")[0]


class ShardConfig(DataConfig):  # type: ignore[misc]
    """What `windrow.ray_train_config` returns."""

    def __init__(self, equal: Equal) -> None:
        super().__init__()
        self._equal = equal

    def configure(
        self,
        datasets: dict[str, Any],
        world_size: int,
        worker_handles: list[Any] | None,
        worker_node_ids: list[str] | None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """The shards of each worker by name; called by Ray Train."""
        found: list[dict[str, Any]] = [{} for _ in range(world_size)]
        others = {}
        for name, dataset in datasets.items():
            if type(dataset).__module__.partition(".")[0] != _PACKAGE:
                others[name] = dataset
                continue
            hints = worker_node_ids or worker_handles
            shards = dataset.split(world_size, equal=self._equal, locality_hints=hints)
            for worker, shard in zip(found, shards, strict=True):
                worker[name] = shard
        if others:
            iterators = super().configure(others, world_size, worker_handles, worker_node_ids, **kwargs)
            for worker, more in zip(found, iterators, strict=True):
                worker.update(more)
        return found
