"""What a rank of four does in the tests of frameworks on a mesh: the cases that its arguments name."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import windrow
from tests.end_to_end.mesh_models import (
    GLOBAL_BATCH,
    RATE,
    STEPS,
    Attention,
    Perceptron,
    make_pipe,
    make_stages,
    mean_of,
    parallelize,
    report,
    squared_error,
)

DATA = sys.argv[1]
DATA_RANKS = 2
BATCH_ROWS = GLOBAL_BATCH // DATA_RANKS


def context() -> Any:
    """Context parallel: head and tail of each sequence, and attention over all keys and values."""
    from torch.distributed._functional_collectives import all_gather_tensor, all_gather_tensor_autograd

    mesh = init_device_mesh("cpu", (DATA_RANKS, 2), mesh_dim_names=("dp", "cp"))

    def gather(part: torch.Tensor) -> torch.Tensor:
        collect: Any = all_gather_tensor_autograd if part.requires_grad else all_gather_tensor
        whole: torch.Tensor = collect(part, 1, mesh["cp"])
        return whole

    model, losses = Attention(gather), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    head_tail = windrow.SequenceSlice(dim=1, layout="head_tail")
    with make_pipe(DATA).shard(mesh=mesh, sequence_dims=("cp",)) as shard:
        for batch in shard.iter_torch_batches(BATCH_ROWS, columns=["tokens", "labels"], sequence=head_tail):
            loss = model(batch)
            _step(model, optimizer, loss, dist.group.WORLD)
            losses.append(mean_of(loss, dist.group.WORLD))
            if len(losses) == STEPS:
                return losses
    return losses


def pipeline() -> Any:
    """Pipeline parallel: the first stage reads features, the last targets, those between count steps."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "pp"))
    at, losses, seen = mesh.get_local_rank("pp"), [], set()
    module = make_stages()[at]
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    stage = PipelineStage(module, at, 4, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=squared_error)
    with make_pipe(DATA).shard(mesh=mesh) as shard:
        for batch in shard.iter_torch_batches(GLOBAL_BATCH, columns={0: ["x"], 3: ["y"]}.get(at, [])):
            seen |= set(batch)
            parts: list[torch.Tensor] = []
            optimizer.zero_grad()
            if at == 3:
                schedule.step(target=batch["y"], losses=parts)
            else:
                schedule.step(*batch.values())
            optimizer.step()
            losses.append(torch.stack(parts).mean().item() if at == 3 else 0.0)
            if len(losses) == STEPS:
                break
    return [sorted(seen), losses]


def explicit() -> Any:
    """Tensor parallel as in Megatron: groups and layers by hand, and no mesh."""
    rank = dist.get_rank()
    data_rank, tensor_rank = divmod(rank, 2)
    tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    data_groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    tensor_group, data_group = tensor_groups[data_rank], data_groups[tensor_rank]

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(gradient, group=tensor_group)
            return gradient

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            dist.all_reduce(x, group=tensor_group)
            return x

        @staticmethod
        def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    copy: Any = Copy.apply
    add: Any = Sum.apply

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = Perceptron()
            own = slice(tensor_rank * 32, (tensor_rank + 1) * 32)
            self.up, self.up_bias, self.down = (
                torch.nn.Parameter(each.detach()[..., own].T.clone())
                for each in (whole.up.weight.T, whole.up.bias, whole.down.weight)
            )
            self.bias = torch.nn.Parameter(whole.down.bias.detach())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(copy(x) @ self.up.T + self.up_bias)
            y: torch.Tensor = add(hidden @ self.down) + self.bias
            return y

    model, losses = Model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with make_pipe(DATA).shard(rank=data_rank, world_size=DATA_RANKS, replica=(tensor_rank, 2)) as shard:
        for batch in shard.iter_torch_batches(BATCH_ROWS, columns=["x", "y"]):
            loss = squared_error(model(batch["x"]), batch["y"])
            _step(model, optimizer, loss, data_group)
            losses.append(mean_of(loss, data_group))
            if len(losses) == STEPS:
                break
    return losses


def accelerate() -> Any:
    """FSDP2 and tensor parallel on the mesh of Accelerate's ParallelismConfig."""
    from accelerate.parallelism_config import ParallelismConfig

    # on CPUs, Accelerator(parallelism_config=) is an error of Accelerate's: torch trains on its mesh
    mesh = ParallelismConfig(dp_shard_size=DATA_RANKS, tp_size=2).build_device_mesh("cpu")
    losses: list[float] = []
    model = parallelize(Perceptron(), mesh["dp_shard"], mesh["tp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with make_pipe(DATA).shard(mesh=mesh) as shard:
        for batch in shard.as_loader(BATCH_ROWS, columns=["x", "y"]):
            loss = squared_error(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(mean_of(loss, mesh["dp_shard"].get_group()))
            if len(losses) == STEPS:
                break
    return losses


def lightning() -> Any:
    """FSDP2 and tensor parallel by Lightning's ModelParallelStrategy."""
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import ModelParallelStrategy

    losses: list[float] = []

    class Model(pl.LightningModule):
        def configure_model(self) -> None:
            mesh: Any = self.device_mesh
            self.layers = parallelize(Perceptron(), mesh["data_parallel"], mesh["tensor_parallel"])

        def train_dataloader(self) -> Any:
            self.shard = make_pipe(DATA).shard(mesh=self.device_mesh)
            return self.shard.as_loader(BATCH_ROWS, columns=["x", "y"])

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss = squared_error(self.layers(batch["x"]), batch["y"])
            mesh: Any = self.device_mesh
            losses.append(mean_of(loss, mesh["data_parallel"].get_group()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    model = Model()
    trainer = pl.Trainer(
        accelerator="cpu",
        strategy=ModelParallelStrategy(data_parallel_size=DATA_RANKS, tensor_parallel_size=2),
        devices=4,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    model.shard.close()
    return losses


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor, group: Any) -> None:
    """Train with the mean gradient of a group."""
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)
    optimizer.step()


def main() -> None:
    """Run the cases."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    for name in sys.argv[2:]:
        if name != "lightning" and not dist.is_initialized():
            dist.init_process_group("gloo")
        case: Callable[[], Any] = globals()[name]
        report([name, case()])


if __name__ == "__main__":
    main()
