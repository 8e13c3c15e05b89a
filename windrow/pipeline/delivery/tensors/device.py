"""Where tensors go: their device, and whether they pass through pinned memory."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windrow.core.errors import PlanError

if TYPE_CHECKING:
    import torch

__all__ = ["Placement", "resolve_placement"]


@dataclass(frozen=True)
class Placement:
    """A device that is known to be there, and whether to stage in pinned memory."""

    device: torch.device | None = None
    pin: bool = False

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Bring a tensor to the device; the copy to a GPU runs behind the caller."""
        if self.pin and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        if self.device is None:
            return tensor
        # A copy *from* a GPU must have ended before anyone reads it.
        behind = self.pin and self.device.type == "cuda"
        return tensor.to(self.device, non_blocking=behind)

    def place_all(self, value: Any) -> Any:
        """Bring every tensor in nested dicts, lists and tuples to the device."""
        import torch

        if self.device is None and not self.pin:
            return value
        if isinstance(value, torch.Tensor):
            return self.place(value)
        if isinstance(value, MutableMapping):
            moved = copy.copy(value)  # keeps the class: OrderedDict, UserDict, ...
            for key, item in value.items():
                moved[key] = self.place_all(item)
            return moved
        if isinstance(value, tuple):
            items = [self.place_all(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return [self.place_all(item) for item in value] if isinstance(value, list) else value


def resolve_placement(device: str | torch.device | None, pin_memory: bool | None) -> Placement:
    """Check a device and settle what was left open.

    "cuda" without a number is the caller's current device, which another thread would
    not know. ``pin_memory=None``: pinned for CUDA.

    Raises
    ------
    PlanError
        If PyTorch, the device, or what pinning needs is missing.
    """
    torch = _import_torch()
    try:
        target = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise PlanError(f"device={device!r} is no torch device: give 'cpu', 'cuda', or 'cuda:1'") from exc
    if pin_memory not in (None, True, False):
        raise PlanError(f"pin_memory={pin_memory!r} must be True, False, or None (pinned for CUDA)")
    on_cuda = target is not None and target.type == "cuda"
    pin = on_cuda if pin_memory is None else bool(pin_memory)
    if (on_cuda or pin) and not torch.cuda.is_available():
        what = f"device={str(target)!r}" if on_cuda else "pin_memory=True"
        raise PlanError(f"{what} needs CUDA, which this PyTorch does not find here: leave it out")
    return Placement(_numbered(target) if target is not None and on_cuda else target, pin)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as exc:
        raise PlanError("tensors need PyTorch: pip install 'windrow[torch]'") from exc
    return torch


def _numbered(device: torch.device) -> torch.device:
    import torch

    number = torch.cuda.current_device() if device.index is None else device.index
    if number >= torch.cuda.device_count():
        raise PlanError(f"device='cuda:{number}' does not exist: there are {torch.cuda.device_count()} here")
    return torch.device("cuda", number)
