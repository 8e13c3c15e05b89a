"""Resolves the target device of tensors and pinned memory, and moves tensors there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windrow.core.errors import PlanError

if TYPE_CHECKING:
    import torch

    # for annotations in modules that do not import torch
    DType = torch.dtype
    Device = str | torch.device

__all__ = ["DType", "Device", "Mover", "Placement", "map_tensors", "resolve_placement", "split_columns"]


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
        from windrow.pipeline.delivery.tensors.staged_copies import CudaCopies, StagedMover

        return StagedMover(self.device, CudaCopies(self.device))


class Mover:
    """Moves the tensors of batches to a device, at once and each by itself."""

    def __init__(self, device: torch.device | None = None, *, pin: bool = False) -> None:
        self._device = device
        self._pin = pin

    def move(
        self,
        value: Any,
        dtypes: Mapping[str, torch.dtype] | None = None,
        build: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """Move the tensors in nested dicts, lists and tuples, and have ``build`` make the batch of them.

        ``dtypes``: what tensors become, by their key in ``value``.
        """
        if dtypes:
            value = value | {name: value[name].to(dtype) for name, dtype in dtypes.items()}
        return build(value if self._device is None and not self._pin else map_tensors(value, self._place))

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._pin and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device)

    def batches(self, moved: Any, rows: int, batch_size: int) -> Iterator[Any]:
        """Split the moved columns of many rows into batches, which are views."""
        return split_columns(moved, batch_size)

    def finish(self, moved: Any) -> Any:
        """The batch itself; called in the consumer's thread."""
        return moved

    def size_of(self, moved: Any) -> int:
        """Bytes that a moved batch takes on a device where others wait beside it; 0: they do not count."""
        return 0


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Replace every tensor in nested dicts, lists and tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, MutableMapping):
        mapped = copy.copy(value)  # preserves the class: OrderedDict, UserDict, ...
        for key, item in value.items():
            mapped[key] = map_tensors(item, function)
        return mapped
    if isinstance(value, tuple):
        items = [map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return [map_tensors(item, function) for item in value] if isinstance(value, list) else value


def split_columns(tensors: dict[str, torch.Tensor], batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Split columns into batches, which are views."""
    for views in zip(*(tensor.split(batch_size) for tensor in tensors.values()), strict=True):
        yield dict(zip(tensors, views, strict=True))


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
