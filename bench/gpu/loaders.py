"""The loaders that are compared: each yields the batches of its epochs, as dicts of tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

import windrow
from bench.training.tensors import to_tensors

Epochs = Iterator[Iterator[dict[str, Any]]]


@dataclass(frozen=True)
class Reading:
    paths: tuple[str, ...]
    columns: tuple[str, ...]
    batch_size: int
    epochs: int
    device: str
    workers: int


def read_windrow(reading: Reading) -> Epochs:
    pipe = windrow.read_parquet(list(reading.paths), columns=list(reading.columns)).repeat(reading.epochs)
    shuffled = pipe.random_shuffle_each_window(seed=1).options(executor="threads", progress=False)
    for epoch in shuffled.iter_epochs():
        yield epoch.iter_torch_batches(reading.batch_size, device=reading.device)


def read_torch(reading: Reading) -> Epochs:
    """Worker processes read row groups in a random order, into pinned memory."""
    from torch.utils.data import DataLoader

    pins = reading.device != "cpu"
    groups: Any = _RowGroups(reading)
    loader = DataLoader(
        groups,
        batch_size=None,
        shuffle=True,
        num_workers=reading.workers,
        pin_memory=pins,
        persistent_workers=True,
        # this process has used the GPU
        multiprocessing_context="spawn",
    )
    for _ in range(reading.epochs):
        yield (
            {name: tensor.to(reading.device, non_blocking=pins) for name, tensor in batch.items()}
            for group in loader
            for batch in _split(group, reading.batch_size)
        )


class _RowGroups:
    """The row groups of some files as tensors."""

    def __init__(self, reading: Reading) -> None:
        self._columns = list(reading.columns)
        self._groups = [
            (path, number)
            for path in reading.paths
            for number in range(pq.read_metadata(path).num_row_groups)
        ]

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, at: int) -> dict[str, Any]:
        path, number = self._groups[at]
        with pq.ParquetFile(path) as file:
            return to_tensors(file.read_row_group(number, columns=self._columns))


def _split(tensors: dict[str, Any], batch_size: int) -> Iterator[dict[str, Any]]:
    for views in zip(*(tensor.split(batch_size) for tensor in tensors.values()), strict=True):
        yield dict(zip(tensors, views, strict=True))


def read_ray(reading: Reading) -> Epochs:
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
