"""Resolves the device of tensors, and moves batches there; to a GPU while the consumer computes.

A thread other than the consumer's fills one of two pinned buffers with all tensors of a batch, and enqueues one copy
of it on a stream of its own. The consumer's stream waits for that copy where the batch is handed over; the CPU does
not. Before a buffer is filled again, the copy out of it must have ended, which it normally has.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.batch_formats import BatchRows, batch_bounds

if TYPE_CHECKING:
    import torch

    DType = torch.dtype
    Device = str | torch.device

# what GPUs read best from, and a multiple of the size of any value
_ALIGNMENT_BYTES = 256
_BUFFERS = 2
# copies whose batches the device may still have to work on when a further one begins: a loop can enqueue many steps
_COPIES_IN_USE = 4


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
            value = value | {name: self._cast(value[name], dtype) for name, dtype in dtypes.items()}
        return build(value if self._device is None and not self._pin else _map_tensors(value, self._place))

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Convert a tensor on the side where it has more bytes."""
        crosses_first = self._device is not None and dtype.itemsize > tensor.dtype.itemsize
        return (self._place(tensor) if crosses_first else tensor).to(dtype)

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._pin and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device)

    def batches(self, moved: Any, total: int, rows: BatchRows) -> Iterator[Any]:
        """Split the moved columns of ``total`` rows into batches, which are views."""
        return _split_columns(moved, rows)

    def finish(self, moved: Any) -> Any:
        """The batch itself; called in the consumer's thread."""
        return moved

    def size_of(self, moved: Any) -> int:
        """Bytes that a moved batch takes on a device where others wait beside it; 0: they do not count."""
        return 0


def _map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Replace every tensor in nested dicts, lists and tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, MutableMapping):
        mapped = copy.copy(value)  # preserves the class: OrderedDict, UserDict, ...
        for key, item in value.items():
            mapped[key] = _map_tensors(item, function)
        return mapped
    if isinstance(value, tuple):
        items = [_map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return [_map_tensors(item, function) for item in value] if isinstance(value, list) else value


def _split_columns(tensors: dict[str, torch.Tensor], rows: BatchRows) -> Iterator[dict[str, torch.Tensor]]:
    """Split columns into batches, which are views."""
    sizes = rows if isinstance(rows, int) else list(rows)
    for views in zip(*(tensor.split(sizes) for tensor in tensors.values()), strict=True):
        yield dict(zip(tensors, views, strict=True))


class Event(Protocol):
    """Tells when the work enqueued before it has been done."""

    def synchronize(self) -> None: ...


class CudaCopies:
    """Pinned memory, and copies of it to a CUDA device on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _copy_stream(device)

    def pin(self, size_bytes: int) -> torch.Tensor:
        """Return pinned memory of a size, as a tensor of bytes."""
        import torch

        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(
        self, source: torch.Tensor, convert: Callable[[torch.Tensor], list[torch.Tensor]]
    ) -> tuple[list[torch.Tensor], Event]:
        """Enqueue a copy of pinned memory to the device, and a conversion there; returns at once."""
        import torch

        with torch.cuda.stream(self._stream):
            converted = convert(source.to(self._device, non_blocking=True))
            event = torch.cuda.Event()
            event.record(self._stream)
        return converted, event

    def hand_over(self, tensors: list[torch.Tensor], event: Any) -> None:
        """Let the work that this thread enqueues from now on wait for an event, and use the tensors."""
        import torch

        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values():
            # their memory belongs to the stream of copies, and is not given to its next batch before this one has done
            tensor.record_stream(stream)

    def note(self) -> Event:
        """Return an event behind the work that this thread has enqueued."""
        import torch

        return torch.cuda.current_stream(self._device).record_event()


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all copies to a device: memory that one stream has freed does not serve another."""
    import torch

    return torch.cuda.Stream(device)


@dataclass(frozen=True)
class _Moved:
    """A batch on its way: what it will be, and what the consumer's stream has to wait for."""

    value: Any
    tensors: list[torch.Tensor]
    event: Event
    size_bytes: int


class _Buffer:
    """Pinned memory, and the last copy out of it."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self.event: Event | None = None

    def reserve(self, size_bytes: int, copies: CudaCopies) -> torch.Tensor:
        """Wait until the memory is free, and return that much of it."""
        if self.event is not None:
            self.event.synchronize()
        if self._memory is None or len(self._memory) < size_bytes:
            self._memory = None
            self._memory = copies.pin(1 << (size_bytes - 1).bit_length())
        return self._memory[:size_bytes]


class StagedMover(Mover):
    """Moves the batches of one iterator; ``move`` and ``batches`` run in one thread, ``finish`` in the consumer's."""

    def __init__(self, device: torch.device, copies: CudaCopies) -> None:
        super().__init__(device)
        self._copies = copies
        self._buffers = [_Buffer() for _ in range(_BUFFERS)]
        self._taken: Event | None = None
        # behind the work on each copy that was taken, except the last one
        self._used: deque[Event] = deque()

    def move(
        self,
        value: Any,
        dtypes: Mapping[str, torch.dtype] | None = None,
        build: Callable[[Any], Any] = lambda value: value,
    ) -> _Moved:
        while len(self._used) >= _COPIES_IN_USE:
            self._used.popleft().synchronize()
        found: dict[int, torch.Tensor] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if _is_dense(tensor):
                found[id(tensor)] = tensor
            return tensor

        _map_tensors(value, note)
        wanted = {id(value[name]): dtype for name, dtype in (dtypes or {}).items()}
        moved, event, size_bytes = self._stage(list(found.values()), [wanted.get(key) for key in found])
        there = dict(zip(found, moved, strict=True))
        result = _map_tensors(value, lambda tensor: there.get(id(tensor), tensor))
        return _Moved(build(result), moved, event, size_bytes)

    def _stage(
        self, tensors: list[torch.Tensor], dtypes: list[torch.dtype | None]
    ) -> tuple[list[torch.Tensor], Event, int]:
        """Copy tensors with one copy, and convert each to its dtype on the side where it has more bytes."""
        kinds = [
            dtype if dtype is not None and dtype.itemsize < tensor.dtype.itemsize else tensor.dtype
            for tensor, dtype in zip(tensors, dtypes, strict=True)
        ]
        sizes = [tensor.numel() * kind.itemsize for tensor, kind in zip(tensors, kinds, strict=True)]
        *starts, total = accumulate((size + -size % _ALIGNMENT_BYTES for size in sizes), initial=0)

        def views(memory: torch.Tensor) -> list[torch.Tensor]:
            return [
                memory[start : start + size].view(kind).view(tensor.shape)
                for tensor, kind, start, size in zip(tensors, kinds, starts, sizes, strict=True)
            ]

        def convert(memory: torch.Tensor) -> list[torch.Tensor]:
            return [
                view if dtype is None else view.to(dtype)
                for view, dtype in zip(views(memory), dtypes, strict=True)
            ]

        buffer = self._buffers[0]
        self._buffers.append(self._buffers.pop(0))
        memory = buffer.reserve(max(1, total), self._copies)
        for view, tensor in zip(views(memory), tensors, strict=True):
            view.copy_(tensor)
        moved, buffer.event = self._copies.copy(memory, convert)
        cast_bytes = sum(
            tensor.nbytes for tensor, kind in zip(moved, kinds, strict=True) if tensor.dtype != kind
        )
        return moved, buffer.event, total + cast_bytes

    def batches(self, moved: _Moved, total: int, rows: BatchRows) -> Iterator[_Moved]:
        bounds = batch_bounds(total, rows)
        for view, (start, stop) in zip(_split_columns(moved.value, rows), bounds, strict=True):
            yield _Moved(view, moved.tensors, moved.event, moved.size_bytes * (stop - start) // total)

    def finish(self, moved: _Moved) -> Any:
        if self._taken is not moved.event:
            if self._taken is not None:
                self._used.append(self._copies.note())
            self._taken = moved.event
        self._copies.hand_over(moved.tensors, moved.event)
        # what a collate_fn made that is more than plain memory, such as sparse tensors, goes by itself
        return _map_tensors(moved.value, lambda tensor: tensor.to(self._device))

    def size_of(self, moved: _Moved) -> int:
        return moved.size_bytes


def _is_dense(tensor: torch.Tensor) -> bool:
    import torch

    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.device.type != "cpu":
        return False
    return tensor.layout == torch.strided and not tensor.is_nested and tensor.is_contiguous()


@dataclass(frozen=True)
class Placement:
    """A device that exists, and whether to stage in pinned memory."""

    device: torch.device | None = None
    pin: bool = False

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
    try:
        import torch
    except ImportError as exc:
        raise PlanError("tensors need PyTorch: pip install 'windrow[torch]'") from exc
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


def _with_index(device: torch.device) -> torch.device:
    import torch

    number = torch.cuda.current_device() if device.index is None else device.index
    if number >= torch.cuda.device_count():
        raise PlanError(f"device='cuda:{number}' does not exist: there are {torch.cuda.device_count()} here")
    return torch.device("cuda", number)
