"""How a shard becomes what frameworks iterate over: `Shard.as_loader`, `Shard.as_torch_dataset` and `feed_trainer`."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.pipeline.delivery.batch_formats import BatchFormat, check_format
from windrow.pipeline.delivery.boosting import BoostingMethods
from windrow.pipeline.delivery.delivery import BatchIterator, check_drop_last, check_number, choose_batches
from windrow.pipeline.loaders.loader import Loader
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.token_budget import TokenBudget

if TYPE_CHECKING:
    from windrow.pipeline.delivery.tensors.device import DType
    from windrow.pipeline.delivery.tensors.ragged import RaggedFormat
    from windrow.pipeline.loaders.torch_dataset import TorchDataset


class LoaderMethods(BoostingMethods):
    """The methods of shards that return loaders."""

    def as_loader(self, batch_size: int = 256, **arguments: Any) -> Loader:
        """Return the remaining epochs as a loader: an iterable with a length and a state.

        Each loop is the next epoch of `iter_torch_batches`. Lightning saves and restores the state of such a
        loader with its checkpoints, also in the middle of an epoch. Neither Lightning nor Accelerate shards it
        again.

        Parameters
        ----------
        batch_size, **arguments
            As for `iter_torch_batches`.

        Raises
        ------
        PlanError
            If an argument is invalid.

        Examples
        --------
        >>> import windrow
        >>> with windrow.range(5).repeat(2).iterator() as shard:
        ...     loader = shard.as_loader(batch_size=2)
        ...     [batch["id"].tolist() for batch in loader], len(loader), loader.state_dict()["epoch"]
        ([[0, 1], [2, 3], [4]], 3, 1)
        """
        known = inspect.signature(self.iter_torch_batches).parameters
        unknown = [name for name in arguments if name not in known]
        if unknown:
            raise PlanError(
                f"as_loader() has no argument {unknown[0]!r}: its arguments are {', '.join(known)}, "
                "as for iter_torch_batches()"
            )
        check_drop_last(arguments.get("drop_last", False))
        return Loader(cast("Any", self), check_number("batch_size", batch_size, 1), arguments)

    def as_torch_dataset(
        self,
        batch_size: int = 256,
        *,
        dtypes: DType | Mapping[str, DType] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        batch_format: BatchFormat = "numpy",
        drop_last: bool = False,
        balance: Balance | None = None,
        token_budget: int | TokenBudget | None = None,
        group_by_length: int | None = None,
        prefetch_batches: int = 1,
        ragged: RaggedFormat | Mapping[str, RaggedFormat] | None = None,
    ) -> TorchDataset:
        """Return the remaining epochs as a dataset of batches, for ``DataLoader(dataset, batch_size=None)``.

        Each loop over the DataLoader is the next epoch. Its batches are those of `iter_torch_batches`, in the
        same order, with any ``num_workers``. The worker processes of all shards share one run on Ray; on threads
        each worker reads for itself. The dataset takes the shard over: read it through the dataset only.

        Parameters
        ----------
        batch_size, dtypes, collate_fn, batch_format, drop_last, balance, group_by_length, prefetch_batches, ragged
            As for `iter_torch_batches`. For tensors on a device, pass the DataLoader ``pin_memory=True``.
        token_budget
            As for `iter_torch_batches`, with ``num_workers`` of 0 or 1. The dataset then has no ``len()``.

        Raises
        ------
        PlanError
            If an argument is invalid, or the shard is being iterated. From the first batch, with ``token_budget`` and
            two workers or more.

        Examples
        --------
        >>> import torch, windrow
        >>> shard = windrow.range(5).repeat(1).iterator()
        >>> loader = torch.utils.data.DataLoader(shard.as_torch_dataset(batch_size=2), batch_size=None)
        >>> [batch["id"].tolist() for batch in loader]
        [[0, 1], [2, 3], [4]]
        """
        require("torch", "torch", "as_torch_dataset()")
        from windrow.pipeline.loaders.torch_dataset import TorchDataset

        check_format(batch_format)
        arguments = {
            "dtypes": dtypes,
            "collate_fn": collate_fn,
            "batch_format": batch_format,
            "balance": balance,
            "token_budget": token_budget,
            "group_by_length": group_by_length,
            "prefetch_batches": check_number("prefetch_batches", prefetch_batches, 0),
            "ragged": ragged,
        }
        choose_batches(batch_size, balance, token_budget, group_by_length)
        check_drop_last(drop_last)
        return TorchDataset(self._divide(), batch_size, drop_last, arguments)

    def to_tf(
        self,
        *,
        feature_columns: Sequence[str] | None = None,
        label_column: str | None = None,
        batch_size: int = 256,
        drop_last: bool = False,
        prefetch_batches: int = 1,
    ) -> Any:
        """Return the remaining epochs as a ``tf.data.Dataset``; needs the extra ``tensorflow``.

        Each iteration over it is the shard's next epoch, as ``model.fit(dataset, epochs=n)`` wants it. An epoch that
        was left early counts as consumed. `state_dict` names what follows the last batch that TensorFlow has taken,
        which can be some batches ahead of the model.

        Parameters
        ----------
        feature_columns, label_column
            As for `Dataset.to_tf`.
        batch_size, drop_last, prefetch_batches
            As for `iter_batches`.

        Raises
        ------
        PlanError
            If TensorFlow is not installed, or a column cannot become a tensor; the message names it.

        Examples
        --------
        >>> import windrow
        >>> shard = windrow.range(3).repeat(2).iterator()
        >>> epochs = shard.to_tf(batch_size=2)  # doctest: +SKIP
        >>> [batch["id"].numpy().tolist() for batch in epochs]  # doctest: +SKIP
        [[0, 1], [2]]
        """
        from windrow.pipeline.loaders.to_tf import to_tf

        job, current = self._job(), list[BatchIterator]()

        def read_batches() -> BatchIterator:
            for batches in current:
                batches.close()
            current[:] = [
                self.iter_batches(batch_size, drop_last=drop_last, prefetch_batches=prefetch_batches)
            ]
            return current[0]

        return to_tf(read_batches, job, feature_columns=feature_columns, label_column=label_column)

    @abstractmethod
    def steps_per_epoch(self, batch_size: int, *, drop_last: bool = False) -> int:
        """Number of batches of this shard in a whole epoch."""

    def _repeats_passes(self) -> bool:
        return self._job().on_demand

    def _row_count(self) -> int:
        return self.steps_per_epoch(1)

    @abstractmethod
    def _job(self) -> Job:
        """What the shard is part of."""

    @abstractmethod
    def _divide(self) -> Any:
        """What opens the shards of worker processes; the shard itself can no longer be read."""


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
