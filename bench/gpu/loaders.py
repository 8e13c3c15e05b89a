"""The loaders that are compared: each yields the batches of its epochs, as dicts of tensors on a device."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import windrow
from bench.training.tensors import TableToTensors

__all__ = ["LOADERS", "Epochs", "Reading", "check_loaders", "read_row_groups"]

Epochs = Iterator[Iterator[dict[str, Any]]]


@dataclass(frozen=True)
class Reading:
    """What to read, and where to put it."""

    paths: tuple[str, ...]
    columns: tuple[str, ...]
    batch_size: int
    epochs: int
    window: str | None
    device: str
    workers: int


def read_windrow(reading: Reading) -> Epochs:
    """windrow's threads, shuffled."""
    pipe = windrow.read_parquet(list(reading.paths), columns=list(reading.columns)).repeat(reading.epochs)
    if reading.window is not None:
        pipe = pipe.window(bytes_per_window=reading.window)
    shuffled = pipe.random_shuffle_each_window(seed=1).options(executor="threads", progress=False)
    for epoch in shuffled.iter_epochs():
        yield epoch.iter_torch_batches(reading.batch_size, device=reading.device)


def read_torch(reading: Reading) -> Epochs:
    """torch's DataLoader with pinned memory; row groups in a random order, their rows as stored."""
    from bench.gpu.loaders import read_row_groups

    return read_row_groups(reading)


def read_ray(reading: Reading) -> Epochs:
    """Ray Data, shuffled, which copies to the device by itself."""
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.read_parquet(list(reading.paths), columns=list(reading.columns))
    for _ in range(reading.epochs):
        batches = dataset.random_shuffle().iter_torch_batches(
            batch_size=reading.batch_size, device=reading.device, prefetch_batches=2
        )
        yield iter(batches)


LOADERS: dict[str, Callable[[Reading], Epochs]] = {
    "windrow": read_windrow,
    "torch": read_torch,
    "ray": read_ray,
}


def check_loaders(names: Sequence[str]) -> None:
    """Raise ValueError for a loader that does not exist."""
    unknown = [name for name in names if name not in LOADERS]
    if unknown:
        raise ValueError(f"--loaders {unknown[0]}: choose from {', '.join(LOADERS)}")


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
