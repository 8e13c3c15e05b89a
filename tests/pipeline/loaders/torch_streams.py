"""Streams of a shard as frameworks get them, to compare."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

import windrow

ROWS, BATCH = 700, 32
# torch warns of more workers than cores, windrow of threads workers that each read whole windows
LOADER_WARNINGS = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata calls a function that torch has deprecated
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:each of the . DataLoader workers:RuntimeWarning"),
]


def read_stream(shard: windrow.Shard, **arguments: Any) -> list[list[Any]]:
    """By epoch, the rows of each batch."""
    arguments = {"batch_size": BATCH, **arguments} if "token_budget" not in arguments else arguments
    with shard:
        return [take_rows(epoch.iter_torch_batches(**arguments)) for epoch in shard.iter_epochs()]


def take_rows(batches: Any) -> list[Any]:
    """The rows of each batch, or of each of its microbatches."""
    return [take_rows(batch) if isinstance(batch, list) else batch["x"].tolist() for batch in batches]


def make_loader(dataset: Any, workers: int, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=None, num_workers=workers, **options)
