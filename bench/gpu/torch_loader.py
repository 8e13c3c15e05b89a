"""torch's DataLoader over row groups; a module of its own, since workers unpickle its dataset and it imports torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from bench.gpu.loaders import Epochs, Reading
from bench.training.tensors import TableToTensors


def read_row_groups(reading: Reading) -> Epochs:
    """Batches of row groups in a random order, copied out of pinned memory."""
    pins = reading.device != "cpu"
    loader = DataLoader(
        _RowGroups(reading),
        batch_size=None,
        num_workers=reading.workers,
        pin_memory=pins,
        persistent_workers=True,
        # this process has used the GPU
        multiprocessing_context="spawn",
    )
    for _ in range(reading.epochs):
        yield (
            {name: tensor.to(reading.device, non_blocking=pins) for name, tensor in batch.items()}
            for batch in loader
        )


class _RowGroups(IterableDataset[Any]):
    """Batches within row groups, which the workers divide."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._passes = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        reading, info = self._reading, get_worker_info()
        convert = TableToTensors(reading.columns)
        groups = [(path, at) for path in reading.paths for at in range(pq.read_metadata(path).num_row_groups)]
        random.Random(self._passes).shuffle(groups)
        self._passes += 1
        own = groups if info is None else groups[info.id :: info.num_workers]
        for path, number in own:
            with pq.ParquetFile(path) as file:
                tensors = convert(file.read_row_group(number, columns=list(reading.columns)))
            for views in zip(*(tensor.split(reading.batch_size) for tensor in tensors.values()), strict=True):
                yield dict(zip(tensors, views, strict=True))
