"""`Mover`: moves the tensors of batches to a device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Mover", "map_tensors", "split_columns"]


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
