"""``python -m bench gpu``: what share of PCIe batches reach, and how long the GPU waits for them.

Each loader yields the batches of its epochs, as dicts of tensors on a device.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

import windrow
from bench.system.console import (
    ProgressLine,
    add_data,
    add_json,
    add_names,
    print_table,
    read_count,
    write_json,
)
from bench.system.machine import count_cores
from bench.throughput.options import BenchConfig
from bench.throughput.report import open_data
from bench.training.facts import KEY
from bench.training.tensors import cut_batches, to_tensors

_HEADS = ("loader", "GB/s", "of PCIe %", "batch ms", "GPU waits %")
_NOTE = (
    "GB/s: tensors that reached the device, without a step. of PCIe: of plain copies out of pinned memory. GPU waits: "
    "of the time after the first epoch, with steps that take the GPU as long as the first loader needs for a batch. "
    "torch shuffles row groups alone."
)
_COPY_BYTES = 256 * 2**20
_COPIES = 8
_MATRIX = 2048
# steps that are enqueued before the CPU waits for the first of them, as a training loop does that reads its loss
_STEPS_AHEAD = 2

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
            for batch in cut_batches([group], reading.batch_size)
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


def add_options(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "--loaders", LOADERS, help="what to compare")
    add_data(parser, "2GB")
    parser.add_argument("--batch-size", type=read_count, default=65_536, help="rows of a batch")
    parser.add_argument("--epochs", type=read_count, default=4, help="epochs, at least 2")
    add_json(parser)


def find_gpu() -> CudaGpu | None:
    import torch

    return CudaGpu() if torch.cuda.is_available() else None


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if every loader delivers each row once, or there is no GPU."""
    if options.epochs < 2:
        raise ValueError("--epochs: 2 or more, since the first one is not measured")
    gpu = find_gpu()
    if gpu is None:
        print("no GPU: torch finds no CUDA device on this machine, so there is nothing to measure")
        return 0
    line = ProgressLine()
    config = BenchConfig(size_bytes=options.size_bytes, folder=options.folder)
    facts = open_data(config)
    files = facts.paths, facts.columns
    reading = Reading(*files, options.batch_size, options.epochs, gpu.device, count_cores())
    whole = (facts.rows, facts.rows * (facts.rows - 1) // 2)
    limit = gpu.copy_rate()
    print(f"{gpu.name}: {limit / 1e9:.1f} GB/s out of pinned memory", flush=True)
    rows, found, breaches, step_seconds = [], [], [], 0.0
    for name in options.loaders:
        line.start(name)
        rates = measure_rate(LOADERS[name], reading, gpu)
        if set(rates.sums) != {whole}:
            breaches.append(f"{name}: not every row came once in each epoch: {rates.sums}")
        step_seconds = step_seconds or rates.batch_seconds
        gpu.prepare(step_seconds)
        waited = measure_wait(LOADERS[name], reading, gpu)
        line.finish(f"GPU waited {waited:.1%}")
        share = rates.bytes_per_second / limit
        found.append({"loader": name, "gpu": gpu.name, "pcie_share": share, "gpu_waits": waited})
        values = (rates.bytes_per_second / 1e9, 100 * share, 1e3 * rates.batch_seconds, 100 * waited)
        rows.append((name, *(f"{value:.1f}" for value in values)))
    print_table(_HEADS, rows, ("loader",), _NOTE, *breaches)
    write_json(options, {"pcie_bytes_per_second": limit, "loaders": found})
    return int(bool(breaches))


class CudaGpu:
    """The current CUDA device; work is products of matrices, which need no PCIe and are done in order."""

    device = "cuda"

    def __init__(self) -> None:
        import torch

        self.name = torch.cuda.get_device_name()
        self._matrix = torch.randn(_MATRIX, _MATRIX, device="cuda")
        self._products = 0

    def copy_rate(self) -> float:
        """Bytes per second of copies out of pinned memory, the most that PCIe gives."""
        import torch

        source = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty_like(source, device="cuda")
        target.copy_(source, non_blocking=True)
        first = self.mark()
        for _ in range(_COPIES):
            target.copy_(source, non_blocking=True)
        last = self.mark()
        last.synchronize()
        return _COPIES * _COPY_BYTES / self.seconds(first, last)

    def prepare(self, seconds: float) -> None:
        """Find out how many products take about that long."""
        # the first products set up the library, the next ones tell how long one takes
        for products in (10, 100):
            self._products = products
            first = self.mark()
            self.work()
            last = self.mark()
            last.synchronize()
        self._products = max(1, round(seconds * self._products / self.seconds(first, last)))

    def work(self) -> None:
        """Enqueue as many."""
        for _ in range(self._products):
            self._matrix @ self._matrix

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, last: Any) -> float:
        """Seconds between two marks that have been passed."""
        return float(first.elapsed_time(last)) / 1e3


@dataclass(frozen=True)
class Rates:
    """A loader that goes as fast as it can, without its first epoch."""

    bytes_per_second: float
    batch_seconds: float
    # rows and sum of the key of each epoch
    sums: tuple[tuple[int, int], ...]


def measure_rate(read: Callable[[Reading], Epochs], reading: Reading, gpu: CudaGpu) -> Rates:
    """Deliver all epochs, and take the time from the end of the first one."""
    sums, size_bytes, batches, began = [], 0, 0, 0.0
    for number, epoch in enumerate(read(reading)):
        if number == 1:
            gpu.mark().synchronize()
            began, size_bytes, batches = time.perf_counter(), 0, 0
        rows, total = 0, 0
        for batch in epoch:
            size_bytes += sum(tensor.nbytes for tensor in batch.values())
            batches += 1
            rows += len(batch[KEY])
            total += batch[KEY].sum()
        sums.append((rows, int(total)))
    gpu.mark().synchronize()
    seconds = time.perf_counter() - began
    return Rates(size_bytes / seconds, seconds / max(1, batches), tuple(sums))


def measure_wait(read: Callable[[Reading], Epochs], reading: Reading, gpu: CudaGpu) -> float:
    """The share of the time that the GPU waits for a batch, 0 to 1, with the work of `CudaGpu.prepare` in each step."""
    steps: list[tuple[Any, Any]] = []
    ahead: deque[Any] = deque()
    for number, epoch in enumerate(read(reading)):
        if number == 1:
            steps.clear()
        for _ in epoch:
            first = gpu.mark()
            gpu.work()
            last = gpu.mark()
            steps.append((first, last))
            ahead.append(last)
            if len(ahead) > _STEPS_AHEAD:
                ahead.popleft().synchronize()
    steps[-1][1].synchronize()
    busy = sum(gpu.seconds(first, last) for first, last in steps)
    return max(0.0, 1 - busy / gpu.seconds(steps[0][0], steps[-1][1]))
