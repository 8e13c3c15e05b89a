"""Hands the shards of pipelines to the workers of Ray Train."""

from __future__ import annotations

from typing import Any

from ray.train import DataConfig

from windrow.shuffle.order.shard_assignment import Equal, check_equal

__all__ = ["RayTrainDataConfig"]

_PACKAGE = __name__.partition(".")[0]


class RayTrainDataConfig(DataConfig):  # type: ignore[misc]
    """Makes ``ray.train.get_dataset_shard`` return windrow's shards: the ``dataset_config`` of a Ray Train trainer.

    Every worker gets one shard of each pipeline or dataset among the trainer's ``datasets``, on its node. When
    Ray Train restarts its workers, also with another number of them, there are new shards: load the state
    from the last checkpoint into each with ``Shard.load_state_dict``. Datasets of Ray Data among them are
    split as Ray does by itself.

    Parameters
    ----------
    equal
        As for ``DatasetPipeline.split``; True by default, since workers that train together need equal
        numbers of steps.

    Examples
    --------
    >>> import windrow
    >>> pipe = windrow.range(10).repeat(2).random_shuffle_each_window(seed=7)
    >>> config = windrow.RayTrainDataConfig()
    >>> [list(shards) for shards in config.configure({"train": pipe}, 2, None, None)]
    [['train'], ['train']]

    With Ray Train: ``TorchTrainer(train, datasets={"train": pipe}, dataset_config=windrow.RayTrainDataConfig())``.
    """

    def __init__(self, *, equal: Equal = True) -> None:
        super().__init__()
        self._equal = check_equal(equal)

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
