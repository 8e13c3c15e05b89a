"""What a rank does in the tests of frameworks: train, save in the middle of an epoch, resume, report the rows."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import windrow
from tests.library_versions import lightning_fit_options

DATA, FOLDER = sys.argv[1], Path(sys.argv[2])
BATCH_ROWS, STOP, EPOCHS = 10, 7, 2


def report(value: Any) -> None:
    """Print a value of this rank, as one write, so that ranks' lines do not mix."""
    os.write(1, f"#{os.environ['RANK']} {json.dumps(value)}\n".encode())


def open_shard() -> windrow.Shard:
    """This rank's shard of the run that all ranks share."""
    pipe = windrow.read_parquet(DATA).window(blocks_per_window=2).repeat(EPOCHS)
    return pipe.random_shuffle_each_window(seed=7).options(progress=False).shard()


def accelerate() -> Any:
    """Train with Accelerate; ``save_state`` and ``load_state`` carry the loader's state."""
    from accelerate import Accelerator

    taken: list[int] = []
    for life in range(2):
        accelerator = Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(*_make_model())
        with open_shard() as shard:
            loader = shard.as_loader(BATCH_ROWS)
            accelerator.register_for_checkpointing(loader)
            if life:
                accelerator.load_state(str(FOLDER / "accelerate"))
            steps = 0
            for _ in range(shard.state_dict()["epoch"], EPOCHS):
                for batch in loader:
                    accelerator.backward(model(batch["x"].float()[:, None]).sum())
                    optimizer.step()
                    optimizer.zero_grad()
                    taken += batch["x"].tolist()
                    steps += 1
                    if life == 0 and steps == STOP:
                        break
                if life == 0:
                    break
            if life == 0:
                accelerator.save_state(str(FOLDER / "accelerate"))
        accelerator.free_memory()
    return taken


def _make_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-9)


def lightning() -> Any:
    """Train with Lightning's DDP; its checkpoints carry the loader's state."""
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            taken.extend(batch["x"].tolist())
            loss: torch.Tensor = self.layer(batch["x"].float()[:, None]).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    taken: list[int] = []
    for life in range(2):
        trainer = pl.Trainer(
            accelerator="cpu",
            strategy="ddp",
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            max_epochs=EPOCHS,
            max_steps=-1 if life else STOP + 2,
            callbacks=[ModelCheckpoint(FOLDER, "{step}", every_n_train_steps=STOP, save_top_k=-1)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=FOLDER,
        )
        with open_shard() as shard:
            saved = FOLDER / f"step={STOP}.ckpt" if life else None
            trainer.fit(Model(), shard.as_loader(BATCH_ROWS), ckpt_path=saved, **lightning_fit_options())
        if not life:
            # what was trained behind the checkpoint is lost
            del taken[STOP * BATCH_ROWS :]
    return taken


def transformers() -> Any:
    """Train with the Trainer of transformers; it knows its place by the number of its steps."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            taken.extend(x.tolist())
            return {"loss": self.layer(x.float()[:, None]).sum()}

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == STOP + 2

    def restore(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    # on CPUs, older versions load the optimizer's state to "cpu:0", which torch.load rejects
    torch.serialization.register_package(5, lambda storage: None, restore)
    taken: list[int] = []
    for life in range(2):
        arguments = TrainingArguments(
            str(FOLDER / "transformers"),
            use_cpu=True,
            learning_rate=1e-9,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH_ROWS,
            save_steps=STOP,
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Trainer(Model(), arguments, callbacks=[] if life else [Stop()])
        with open_shard() as shard:
            windrow.feed_trainer(trainer, shard)
            trainer.train(
                resume_from_checkpoint=str(FOLDER / "transformers" / f"checkpoint-{STOP}") if life else None
            )
        if not life:
            # what was trained behind the checkpoint is lost
            del taken[STOP * BATCH_ROWS :]
    return taken


def main() -> None:
    """Run the cases."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    for name in sys.argv[3:]:
        case: Callable[[], Any] = globals()[name]
        report(case())


if __name__ == "__main__":
    main()
