"""`ray_train_config`: hands the shards of pipelines to the workers of Ray Train."""

from __future__ import annotations

from typing import Any

from windrow.core.optional_dependencies import require
from windrow.shuffle.order.shard_assignment import Equal, check_equal

__all__ = ["ray_train_config"]


def ray_train_config(*, equal: Equal = True) -> Any:
    """Return the ``dataset_config`` with which ``ray.train.get_dataset_shard`` returns windrow's shards.

    Every worker gets one shard of each pipeline or dataset among the trainer's ``datasets``, on its node. When
    Ray Train restarts its workers, also with another number of them, there are new shards: load the state
    from the last checkpoint into each with ``Shard.load_state_dict``. Datasets of Ray Data among them are
    split as Ray does by itself.

    Parameters
    ----------
    equal
        As for ``DatasetPipeline.split``; True by default, since workers that train together need equal
        numbers of steps.

    Returns
    -------
    ray.train.DataConfig

    Raises
    ------
    PlanError
        If Ray is not installed, or ``equal`` is not one of its values.

    Examples
    --------
    >>> import windrow
    >>> pipe = windrow.range(10).repeat(2).random_shuffle_each_window(seed=7)
    >>> config = windrow.ray_train_config()
    >>> [list(shards) for shards in config.configure({"train": pipe}, 2, None, None)]
    [['train'], ['train']]

    With Ray Train: ``TorchTrainer(train, datasets={"train": pipe}, dataset_config=windrow.ray_train_config())``.
    """
    require("ray", "ray", "ray_train_config()")
    from windrow.pipeline.executors.ray.data.train_config import ShardConfig

    return ShardConfig(check_equal(equal))
