"""Resolves the target device of tensors and pinned memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.tensors.mover import Mover
from windrow.pipeline.delivery.tensors.staged_copies import CudaCopies, StagedMover

if TYPE_CHECKING:
    import torch

    # for annotations in modules that do not import torch
    DType = torch.dtype
    Device = str | torch.device

__all__ = ["DType", "Device", "Placement", "resolve_placement"]


@dataclass(frozen=True)
class Placement:
    """A device that exists, and whether to stage in pinned memory."""

    device: torch.device | None = None
    pin: bool = False

    @property
    def is_final_pinned(self) -> bool:
        """Whether tensors stay in pinned memory."""
        return self.pin and self.device is None

    def mover(self) -> Mover:
        """What moves the batches of one iterator."""
        if self.device is None or not self.pin or self.device.type != "cuda":
            return Mover(self.device, pin=self.pin)
        return StagedMover(self.device, CudaCopies(self.device))


def resolve_placement(device: str | torch.device | None, pin_memory: bool | None) -> Placement:
    """Check a device and resolve defaults.

    "cuda" without an index means the current device of the calling thread, so it is resolved here and not in
    the thread that copies. ``pin_memory=None`` means pinned for CUDA. Raises PlanError if PyTorch or the
    device is missing, or pinning needs CUDA and there is none.
    """
    torch = _import_torch()
    try:
        target = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise PlanError(f"device={device!r} is not a torch device: give 'cpu', 'cuda', or 'cuda:1'") from exc
    if pin_memory not in (None, True, False):
        raise PlanError(f"pin_memory={pin_memory!r} must be True, False, or None (pinned for CUDA)")
    on_cuda = target is not None and target.type == "cuda"
    pin = on_cuda if pin_memory is None else bool(pin_memory)
    if (on_cuda or pin) and not torch.cuda.is_available():
        what = f"device={str(target)!r}" if on_cuda else "pin_memory=True"
        raise PlanError(f"{what} needs CUDA, which this PyTorch does not find here: leave it out")
    return Placement(_with_index(target) if target is not None and on_cuda else target, pin)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as exc:
        raise PlanError("tensors need PyTorch: pip install 'windrow[torch]'") from exc
    return torch


def _with_index(device: torch.device) -> torch.device:
    import torch

    number = torch.cuda.current_device() if device.index is None else device.index
    if number >= torch.cuda.device_count():
        raise PlanError(f"device='cuda:{number}' does not exist: there are {torch.cuda.device_count()} here")
    return torch.device("cuda", number)
