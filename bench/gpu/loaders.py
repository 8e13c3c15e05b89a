"""The loaders that are compared: each yields the batches of its epochs, as dicts of tensors on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import windrow

Epochs = Iterator[Iterator[dict[str, Any]]]


@dataclass(frozen=True)
class Reading:
    paths: tuple[str, ...]
    columns: tuple[str, ...]
    batch_size: int
    epochs: int
    window: str | None
    device: str
    workers: int


def read_windrow(reading: Reading) -> Epochs:
    pipe = windrow.read_parquet(list(reading.paths), columns=list(reading.columns)).repeat(reading.epochs)
    if reading.window is not None:
        pipe = pipe.window(bytes_per_window=reading.window)
    shuffled = pipe.random_shuffle_each_window(seed=1).options(executor="threads", progress=False)
    for epoch in shuffled.iter_epochs():
        yield epoch.iter_torch_batches(reading.batch_size, device=reading.device)


def read_torch(reading: Reading) -> Epochs:
    from bench.gpu.torch_loader import load_row_groups

    pins = reading.device != "cpu"
    loader = load_row_groups(reading.paths, reading.columns, reading.batch_size, reading.workers, pins=pins)
    for _ in range(reading.epochs):
        yield (
            {name: tensor.to(reading.device, non_blocking=pins) for name, tensor in batch.items()}
            for batch in loader
        )


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
