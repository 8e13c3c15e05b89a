"""Checkpoints of Lightning and Ray Train contain the state of a shard."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import windrow
from tests.end_to_end.data import write_numbers
from tests.library_versions import lightning_fit_options
from windrow import DatasetPipeline

BATCH_ROWS, STOP = 10, 7
STEPS = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_numbers(tmp_path / "x.parquet", 200)


def pipeline(path: Path) -> DatasetPipeline:
    ds = windrow.read_parquet(str(path), target_block_bytes=1).window(blocks_per_window=1)
    return ds.repeat(2).random_shuffle_each_window(seed=3).options(executor="threads")


def read_all(path: Path) -> list[int]:
    with pipeline(path).iterator() as shard:
        return [
            int(x)
            for epoch in shard.iter_epochs()
            for batch in epoch.iter_batches(BATCH_ROWS)
            for x in batch["x"]
        ]


@pytest.mark.filterwarnings("ignore")  # Lightning's advice
def test_lightning_checkpoints(path: Path, tmp_path: Path) -> None:
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.trained: list[int] = []
            self.validated: list[int] = []

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            self.trained += batch["x"].tolist()
            loss: torch.Tensor = self.layer(batch["x"].float()[:, None]).mean()
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], _: int) -> None:
            self.validated += batch["id"].tolist()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def trainer(steps: int) -> Any:
        return lightning.Trainer(
            max_steps=steps,
            num_sanity_val_steps=0,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )

    saved = tmp_path / "model.ckpt"
    before, after = Model(), Model()
    with pipeline(path).iterator() as shard:
        first = trainer(STOP)
        first.fit(before, shard.as_loader(BATCH_ROWS))
        first.save_checkpoint(saved)
    held_out = windrow.range(30).repeat().options(executor="threads")
    with pipeline(path).iterator() as shard, held_out.iterator() as validation:
        # into the second epoch, with a validation after each
        trainer(STEPS + 5).fit(
            after,
            shard.as_loader(BATCH_ROWS),
            validation.as_loader(BATCH_ROWS),
            ckpt_path=saved,
            **lightning_fit_options(),
        )
        assert shard.state_dict()["row"] == 5 * BATCH_ROWS
    assert [len(before.trained), len(after.trained)] == [STOP * BATCH_ROWS, (STEPS + 5 - STOP) * BATCH_ROWS]
    assert before.trained + after.trained == read_all(path)[: (STEPS + 5) * BATCH_ROWS]
    assert after.validated == list(range(30)), after.validated


def _train(config: dict[str, Any]) -> None:
    """The training function of Ray Train: it fails once after a checkpoint, and resumes from it."""
    from ray import train

    shard: Any = train.get_dataset_shard("numbers")
    rank, last = train.get_context().get_world_rank(), train.get_checkpoint()
    stop = STEPS if last is not None else STOP
    if last is not None:
        with last.as_directory() as saved:
            shard.load_state_dict(torch.load(Path(saved) / "state.pt", weights_only=True))
    rows = []
    for epoch in shard.iter_epochs():
        for batch in epoch.iter_batches(BATCH_ROWS):
            rows += batch["x"].tolist()
            if last is None and len(rows) == stop * BATCH_ROWS:
                break
        if last is None:
            break
    Path(config["folder"], f"{last is None}-{rank}.json").write_text(json.dumps(rows))
    with tempfile.TemporaryDirectory() as folder:
        torch.save(shard.state_dict(), Path(folder) / "state.pt")
        saved_state = train.Checkpoint.from_directory(folder) if rank == 0 else None
        train.report({}, checkpoint=saved_state)
    if last is None:
        raise RuntimeError("this worker fails")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # Ray Train's advice
def test_ray_train_checkpoints(ray_local: Any, path: Path, tmp_path: Path) -> None:
    from ray import train
    from ray.train.torch import TorchTrainer

    pipe = pipeline(path).options(executor="ray")
    trainer = TorchTrainer(
        _train,
        train_loop_config={"folder": str(tmp_path)},
        datasets={"numbers": pipe},
        dataset_config=windrow.ray_train_config(),
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(
            storage_path=str(tmp_path / "runs"), failure_config=train.FailureConfig(max_failures=1)
        ),
    )
    trainer.fit()
    expected = [
        [
            x
            for epoch in shard.iter_epochs()
            for batch in epoch.iter_batches(BATCH_ROWS)
            for x in batch["x"].tolist()
        ]
        for shard in pipeline(path).split(2, equal=True)
    ]
    for rank in range(2):
        lives = [json.loads((tmp_path / f"{first}-{rank}.json").read_text()) for first in (True, False)]
        assert lives[0] + lives[1] == expected[rank]


def _train_rest(config: dict[str, Any]) -> None:
    """The training function of Ray Train that continues from a state which other workers have saved."""
    from ray import train

    shard: Any = train.get_dataset_shard("numbers")
    shard.load_state_dict(config["state"])
    epochs = [
        [x for batch in epoch.iter_batches(BATCH_ROWS) for x in batch["x"].tolist()]
        for epoch in shard.iter_epochs()
    ]
    rank = train.get_context().get_world_rank()
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(epochs))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # Ray Train's advice
def test_ray_train_goes_on_with_another_number_of_workers(ray_local: Any, path: Path, tmp_path: Path) -> None:
    from ray import train
    from ray.train.torch import TorchTrainer

    taken = 0
    shards = pipeline(path).split(2, equal=True)
    for shard in shards:
        batches = shard.iter_batches(BATCH_ROWS)
        taken += sum(len(next(batches)["x"]) for _ in range(STOP))
        state = shard.state_dict()
        batches.close()
        shard.close()
    trainer = TorchTrainer(
        _train_rest,
        train_loop_config={"folder": str(tmp_path), "state": state},
        datasets={"numbers": pipeline(path).options(executor="ray")},
        dataset_config=windrow.ray_train_config(),
        scaling_config=train.ScalingConfig(num_workers=3, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(tmp_path / "runs")),
    )
    trainer.fit()
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    with pipeline(path).iterator() as whole:
        orders = [
            [x for batch in epoch.iter_batches(BATCH_ROWS) for x in batch["x"].tolist()]
            for epoch in whole.iter_epochs()
        ]
    left = [orders[0][taken:], *orders[1:]]
    for number, order in enumerate(left):
        found = [x for part in parts for x in part[number]]
        # equal=True leaves out at most n - 1 rows of an epoch, the last ones of its order
        assert set(found) == set(order[: len(order) - len(order) % 3])
        assert len(found) == len(order) - len(order) % 3
