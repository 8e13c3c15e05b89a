"""The GPU that is measured, its clock, and the two measurements of a loader."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.gpu.loaders import Epochs, Reading

_COPY_BYTES = 256 * 2**20
_COPIES = 8
_MATRIX = 2048
# steps that are enqueued before the CPU waits for the first of them, as a training loop does that reads its loss
_STEPS_AHEAD = 2


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


def measure_rate(read: Callable[[Reading], Epochs], reading: Reading, key: str, gpu: CudaGpu) -> Rates:
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
            rows += len(batch[key])
            total += batch[key].sum()
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
