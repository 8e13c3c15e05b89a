"""A loader as the Trainer of transformers takes it, with its way of skipping batches after a resume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback

from windrow.pipeline.loaders.loader import Loader


def feed(trainer: Any, loader: Loader) -> None:
    """Make the trainer use this loader."""
    dataloader = TrainerLoader(loader)
    trainer.get_train_dataloader = lambda: dataloader
    trainer.add_callback(_Resume(dataloader))


class TrainerLoader(DataLoader[Any]):
    """A DataLoader, as Accelerate wants one, that iterates over a loader's epochs in this process.

    After a resume, the trainer has Accelerate make another loader of ``dataset`` that drops the first batches. The
    shard is already behind them. So ``dataset`` yields placeholders in their place.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__(_WholeEpoch(self), batch_size=None)
        self.loader = loader
        # batches of the coming epoch that were trained before
        self.passed = 0

    def __iter__(self) -> Any:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def skip(self, epochs: int, batches: int) -> None:
        """Move the shard behind whole epochs, and some batches of the next one."""
        self.loader.skip_batches(epochs * len(self) + batches if epochs else batches)
        self.passed = batches


class _WholeEpoch(IterableDataset[Any]):
    """The batches of an epoch, with placeholders for those that were trained before."""

    def __init__(self, owner: TrainerLoader) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._owner.passed):
            yield ()
        yield from self._owner


class _Resume(TrainerCallback):
    """Moves the shard to where the trainer resumes."""

    def __init__(self, dataloader: TrainerLoader) -> None:
        self._dataloader = dataloader

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called when the trainer knows its step."""
        if state.global_step == 0 or args.ignore_data_skip:
            return
        # as the trainer computes them: an epoch's last update can have fewer batches
        accumulated = args.gradient_accumulation_steps
        updates = -(-len(self._dataloader) // accumulated)
        epochs, done = divmod(state.global_step, updates)
        self._dataloader.skip(epochs, done * accumulated)
