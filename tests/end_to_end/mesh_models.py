"""Models and data of the tests that train on a mesh."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist

import windrow
from windrow import DatasetPipeline

Case = TypeVar("Case")

FEATURES, LENGTH, VOCABULARY = 16, 16, 11
GLOBAL_BATCH, STEPS, RATE = 32, 20, 0.05


def write_samples(path: Path, rows: int) -> Path:
    """Write features and targets of a linear function with noise, and sequences of tokens."""
    bits = np.random.Philox(3)
    x = bits.random_raw(rows * FEATURES).reshape(rows, FEATURES) / 2.0**64 - 0.5
    tokens = (bits.random_raw(rows * (LENGTH + 1)) % VOCABULARY).astype(np.int64).reshape(rows, -1)
    columns = {
        "row": np.arange(rows),
        "x": _lists(x.astype(np.float32)),
        "y": (x @ np.arange(FEATURES) / FEATURES).astype(np.float32),
        "tokens": _lists(tokens[:, :-1]),
        "labels": _lists(tokens[:, 1:]),
    }
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def _lists(values: np.ndarray[Any, Any]) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def make_pipe(data: str, executor: str = "auto") -> DatasetPipeline:
    """The pipeline of all tests on a mesh."""
    pipe = windrow.read_parquet(data, target_block_bytes=1).window(blocks_per_window=2).repeat(2)
    return pipe.random_shuffle_each_window(seed=7).options(executor=executor, progress=False)


def report(value: Any) -> None:
    """Print a value of this rank, as one write, so that ranks' lines do not mix."""
    os.write(1, f"#{os.environ['RANK']} {json.dumps(value)}\n".encode())


def read_cases(cases: Iterable[Case], read: Callable[[Case], None]) -> None:
    """Read drawn cases on all ranks, with one Ray for all of their runs."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    dist.init_process_group("gloo")
    with windrow.attach():
        for case in cases:
            read(case)
    dist.destroy_process_group()


class Perceptron(torch.nn.Module):
    """Two layers, which tensor parallelism divides between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(FEATURES, 64)
        self.down = torch.nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y


def squared_error(predicted: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of a step."""
    return torch.nn.functional.mse_loss(predicted[:, 0], y)


def parallelize(model: Perceptron, data: Any, tensor: Any = None) -> Any:
    """FSDP2 over one mesh, and tensor parallel over another one."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if tensor is not None:
        parallelize_module(model, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=data)


def mean_of(loss: torch.Tensor, group: Any) -> float:
    """The mean of ranks' losses."""
    total = loss.detach().clone()
    torch.distributed.all_reduce(total, group=group)
    return total.item() / torch.distributed.get_world_size(group)


class Attention(torch.nn.Module):
    """One layer of causal attention over tokens; ``gather`` makes keys, values and their positions whole."""

    def __init__(self, gather: Callable[[torch.Tensor], torch.Tensor] = lambda part: part) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gather = gather
        self.tokens = torch.nn.Embedding(VOCABULARY, FEATURES)
        self.positions = torch.nn.Embedding(LENGTH, FEATURES)
        self.queries, self.keys, self.values = (torch.nn.Linear(FEATURES, FEATURES) for _ in range(3))
        self.head = torch.nn.Linear(FEATURES, VOCABULARY)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        at = batch["position_ids"]
        x = self.tokens(batch["tokens"]) + self.positions(at)
        keys, values, before = self.gather(self.keys(x)), self.gather(self.values(x)), self.gather(at)
        seen = at[:, :, None] >= before[:, None, :]
        x = x + torch.nn.functional.scaled_dot_product_attention(
            self.queries(x), keys, values, attn_mask=seen
        )
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), batch["labels"].flatten())


def make_stages() -> list[torch.nn.Module]:
    """Four layers, each a stage of a pipeline."""
    torch.manual_seed(0)
    sizes = [FEATURES, 32, 32, 32]
    return [torch.nn.Sequential(torch.nn.Linear(size, 32), torch.nn.ReLU()) for size in sizes[:3]] + [
        torch.nn.Linear(32, 1)
    ]


def train_alone(
    data: str,
    model: torch.nn.Module,
    loss_of: Callable[[torch.nn.Module, dict[str, torch.Tensor]], torch.Tensor],
    sequence: windrow.SequenceSlice | None = None,
) -> list[float]:
    """The losses of one process with the whole batch."""
    losses: list[float] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with make_pipe(data, "threads").iterator() as shard:
        columns = ["x", "y"] if sequence is None else ["tokens", "labels"]
        for batch in shard.iter_torch_batches(GLOBAL_BATCH, columns=columns, sequence=sequence):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == STEPS:
                break
    return losses
