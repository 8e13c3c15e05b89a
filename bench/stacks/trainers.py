"""One trainer of one framework, in a process of its own: trains, and answers how long it waited."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import windrow
from bench.training.facts import KEY

# The first epoch starts processes and touches memory. The next ones measure the engine alone; the slowest counts,
# because a machine's speed varies.
_FREE_EPOCHS = 4


class Pace:
    """Called with each batch: a step that takes as long as the engine needs for one."""

    def __init__(self, shard: windrow.Shard, batch_rows: int, epochs: int) -> None:
        self._shard = shard
        self._steps = shard.steps_per_epoch(batch_rows)
        self._epochs = epochs
        self._taken = 0
        self._began = self._waited = self.seconds = 0.0
        # sum of keys and number of rows of each epoch
        self.sums = [[0, 0] for _ in range(epochs)]
        self.result: dict[str, Any] = {}

    def __call__(self, batch: Any) -> None:
        """Count a batch, and take the time of a step."""
        epoch, at = divmod(self._taken, self._steps)
        self._taken += 1
        # JAX adds up 32-bit integers in 32 bits
        keys = np.asarray(batch[KEY])
        self.sums[epoch][0] += int(keys.sum(dtype=np.int64))
        self.sums[epoch][1] += len(keys)
        if at == 0 and 1 <= epoch <= _FREE_EPOCHS:
            now = time.perf_counter()
            if epoch > 1:
                self.seconds = max(self.seconds, (now - self._began) / self._steps)
            self._began = now
        if at == 0 and epoch == _FREE_EPOCHS:
            self._waited = self._shard.stats().wait_seconds
        if epoch >= _FREE_EPOCHS:
            time.sleep(self.seconds)
        if self._taken == self._steps * self._epochs:
            seconds = time.perf_counter() - self._began
            steps = self._steps * (self._epochs - _FREE_EPOCHS)
            self.result = {
                "step_seconds": self.seconds,
                "waited": (self._shard.stats().wait_seconds - self._waited) / seconds,
                "between": 1 - self.seconds * steps / seconds,
                "sums": self.sums,
            }


class Job:
    def __init__(self, paths: list[str], batch_rows: int, epochs: int, window: str | None) -> None:
        self.batch_rows, self.epochs = batch_rows, epochs
        dataset = windrow.read_parquet(paths)
        windowed = dataset.window(bytes_per_window=window) if window else dataset
        self.pipe = windowed.repeat(self.epochs).random_shuffle_each_window(seed=7).options(progress=False)
        self.local = self.pipe.options(executor="threads")

    def pace(self, shard: windrow.Shard) -> Pace:
        return Pace(shard, self.batch_rows, self.epochs)

    def read(self, shard: windrow.Shard, method: str = "iter_torch_batches") -> dict[str, Any]:
        step = self.pace(shard)
        for epoch in shard.iter_epochs():
            for batch in getattr(epoch, method)(self.batch_rows):
                step(batch)
        return step.result


def shard(job: Job) -> dict[str, Any]:
    """``shard.iter_epochs()`` on threads."""
    with job.local.iterator() as one:
        return job.read(one)


def jax(job: Job) -> dict[str, Any]:
    with job.local.iterator() as one:
        return job.read(one, "iter_jax_batches")


def accelerate(job: Job) -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    with job.local.iterator() as one:
        step, loader = job.pace(one), one.as_loader(job.batch_rows, device=accelerator.device)
        accelerator.register_for_checkpointing(loader)
        for _ in range(job.epochs):
            for batch in loader:
                step(batch)
        return step.result


def lightning(job: Job) -> dict[str, Any]:
    import pytorch_lightning as pl
    import torch

    class Model(pl.LightningModule):
        def __init__(self, step: Pace) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.layer = torch.nn.Linear(1, 1)
            self.step = step

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.step(batch)

        def configure_optimizers(self) -> None:
            return None

    with job.local.iterator() as one, tempfile.TemporaryDirectory() as folder:
        step = job.pace(one)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=job.epochs,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Model(step), one.as_loader(job.batch_rows))
        return step.result


def transformers(job: Job) -> dict[str, Any]:
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
            step(batch)
            return {"loss": self.layer.weight.sum()}

    with job.local.iterator() as one, tempfile.TemporaryDirectory() as folder:
        step = job.pace(one)
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=job.epochs,
            per_device_train_batch_size=job.batch_rows,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(Model(), arguments)
        windrow.feed_trainer(trainer, one)
        trainer.train()
        return step.result


def torchrun(job: Job) -> dict[str, Any]:
    """One rank of torchrun: a run on Ray, found through ``attach``."""
    with job.pipe.shard() as one:
        return job.read(one)


def ray_actor(job: Job) -> dict[str, Any]:
    """An actor that gets a shard of ``split``."""
    import ray

    class Actor:
        def train(self, one: windrow.Shard) -> dict[str, Any]:
            return job.read(one)

    actor: Any = ray.remote(Actor).options(num_cpus=0).remote()
    (one,) = job.pipe.split(1, locality_hints=[actor])
    found: dict[str, Any] = ray.get(actor.train.remote(one))
    return found


def ray_gang(job: Job) -> dict[str, Any]:
    (found,) = windrow.run_gang(lambda context: job.read(context.shard), 1, dataset=job.pipe, num_cpus=0.01)
    return dict(found)


def ray_train(job: Job) -> dict[str, Any]:
    """Ray Train with ``ray_train_config``."""
    from ray import train
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result")

        def loop() -> None:
            shard: Any = train.get_dataset_shard("rows")
            with open(result, "w") as file:
                json.dump(job.read(shard), file)

        trainer = TorchTrainer(
            loop,
            datasets={"rows": job.pipe},
            dataset_config=windrow.ray_train_config(),
            scaling_config=train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.01}),
            run_config=train.RunConfig(storage_path=folder),
        )
        trainer.fit()
        with open(result) as file:
            found: dict[str, Any] = json.load(file)
            return found


STACKS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "shard": shard,
    "jax": jax,
    "accelerate": accelerate,
    "lightning": lightning,
    "transformers": transformers,
    "torchrun": torchrun,
    "ray-actor": ray_actor,
    "ray-gang": ray_gang,
    "ray-train": ray_train,
}


def start() -> Callable[[tuple[str, tuple[Any, ...]]], dict[str, Any]]:
    """Answers the name of a framework, and what its job gets."""
    warnings.simplefilter("ignore")
    os.environ["JAX_PLATFORMS"] = "cpu"
    logging.disable(logging.INFO)

    def train(request: tuple[str, tuple[Any, ...]]) -> dict[str, Any]:
        name, arguments = request
        if name.startswith("ray-"):
            import ray

            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        return STACKS[name](Job(*arguments))

    return train
