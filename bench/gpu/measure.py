"""Reads one loader twice: as fast as it goes, and in front of work on the GPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.gpu.device import Gpu, Mark
from bench.gpu.loaders import Epochs, Reading

__all__ = ["Rates", "measure_rate", "measure_wait"]

# steps that are enqueued before the CPU waits for the first of them, as a training loop does that reads its loss
_STEPS_AHEAD = 2


@dataclass(frozen=True)
class Rates:
    """A loader that goes as fast as it can, without its first epoch."""

    bytes_per_second: float
    batch_seconds: float
    # rows and sum of the key of each epoch
    sums: tuple[tuple[int, int], ...]


def measure_rate(read: Callable[[Reading], Epochs], reading: Reading, key: str, gpu: Gpu) -> Rates:
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


def measure_wait(read: Callable[[Reading], Epochs], reading: Reading, gpu: Gpu) -> float:
    """The share of the time that the GPU waits for a batch, 0 to 1, with the work of `Gpu.prepare` in each step."""
    steps: list[tuple[Mark, Mark]] = []
    ahead: deque[Mark] = deque()
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
