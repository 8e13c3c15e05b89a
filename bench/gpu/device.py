"""The GPU that is measured, and its clock."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["CudaGpu", "Gpu", "Mark"]

_COPY_BYTES = 256 * 2**20
_COPIES = 8
_MATRIX = 2048


class Mark(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None: ...


class Gpu(Protocol):
    """A device whose stream does what is enqueued, in order."""

    name: str
    device: str

    def copy_rate(self) -> float:
        """Bytes per second of copies out of pinned memory, the most that PCIe gives."""

    def prepare(self, seconds: float) -> None:
        """Find out how much work takes about that long."""

    def work(self) -> None:
        """Enqueue that work."""

    def mark(self) -> Mark:
        """Enqueue a mark."""

    def seconds(self, first: Mark, last: Mark) -> float:
        """Seconds between two marks that have been passed."""


class CudaGpu:
    """The current CUDA device; work is products of matrices, which do not need PCIe."""

    device = "cuda"

    def __init__(self) -> None:
        import torch

        self.name = torch.cuda.get_device_name()
        self._matrix = torch.randn(_MATRIX, _MATRIX, device="cuda")
        self._products = 0

    def copy_rate(self) -> float:
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
        # the first products set up the library, the next ones tell how long one takes
        for products in (10, 100):
            self._products = products
            first = self.mark()
            self.work()
            last = self.mark()
            last.synchronize()
        self._products = max(1, round(seconds * self._products / self.seconds(first, last)))

    def work(self) -> None:
        for _ in range(self._products):
            self._matrix @ self._matrix

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) / 1e3
