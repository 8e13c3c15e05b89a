"""`feed_trainer`: a Hugging Face Trainer reads a shard."""

from __future__ import annotations

from typing import Any

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.loaders.loader_methods import LoaderMethods

__all__ = ["feed_trainer"]


def feed_trainer(trainer: Any, shard: LoaderMethods, **arguments: Any) -> None:
    """Make a ``transformers.Trainer`` train on a shard.

    Each epoch of the trainer is an epoch of the shard. Neither the trainer nor Accelerate shards it again.
    ``train(resume_from_checkpoint=...)`` goes on behind the last step of the checkpoint, also in the middle of an
    epoch, without reading what was trained before.

    Parameters
    ----------
    trainer
        The trainer. Its batch size, ``per_device_train_batch_size``, counts; its train_dataset and data_collator
        are not used for training.
    shard
        This process's shard, as `DatasetPipeline.shard` returns it.
    **arguments
        As for ``iter_torch_batches``; the names of the columns are the arguments of the model.

    Raises
    ------
    PlanError
        If ``trainer`` is not a Trainer, or an argument is invalid.

    Notes
    -----
    A resume needs the number of ranks and the batch size of the run before, because the trainer knows its place
    by the number of its steps. With ``ignore_data_skip=True``, the shard stays where it is: load a state into it
    before, for another number of ranks.

    Examples
    --------
    ::

        trainer = Trainer(model, TrainingArguments("out", num_train_epochs=2, save_steps=500))
        windrow.feed_trainer(trainer, pipe.shard())
        trainer.train(resume_from_checkpoint=True)

    >>> import windrow
    >>> windrow.feed_trainer("trainer", windrow.range(4).repeat(2).iterator())
    Traceback (most recent call last):
    ...
    windrow.core.errors.PlanError: trainer='trainer' is not a Trainer of transformers
    """
    if not hasattr(trainer, "get_train_dataloader") or not hasattr(trainer, "add_callback"):
        raise PlanError(f"trainer={trainer!r} is not a Trainer of transformers")
    require("transformers", "transformers", "feed_trainer()")
    from windrow.pipeline.loaders.trainer_loader import feed

    arguments.setdefault("batch_size", trainer.args.train_batch_size)
    feed(trainer, shard.as_loader(**arguments))
