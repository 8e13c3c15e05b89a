"""A dataset of torch tensors, or of a map-style torch Dataset; torch itself is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.in_memory import dataset_of_tables
from windrow.dataset.sources.torch_samples import rows_of_samples
from windrow.dataset.sources.user_columns import table_of_arrays
from windrow.io.adapters.map_style import index_items

__all__ = ["from_torch"]


def from_torch(data: Any, *, target_block_bytes: int | str = "64MiB") -> Dataset:
    """Return a dataset of torch tensors, or of a map-style torch ``Dataset``.

    Tensors, (rows, ...) each, are not copied where they lie in main memory: do not change them
    while the dataset is in use. The items of a map-style Dataset are asked for when they are
    read, block by block and in every epoch anew, in the processes that read; it must be
    picklable for processes other than this one. A few items are asked for now, to learn columns
    and types.

    Parameters
    ----------
    data
        A Tensor, which becomes column ``"item"``; a dict of tensors, one for each column; a
        ``TensorDataset``, whose tensors become columns ``"item_0"``, ``"item_1"`` ...; or an
        object with ``__len__`` and ``__getitem__``, whose items are tensors or numbers
        (``"item"``), dicts of them, or tuples (``"item_0"`` ...).
    target_block_bytes
        Blocks have about so many bytes: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For anything else: a Dataset that can only be iterated has `from_generator`.

    Notes
    -----
    A saved state knows a map-style Dataset by its class, its length and its columns' types; other
    values are not noticed.

    Examples
    --------
    >>> import torch, windrow
    >>> windrow.from_torch({"x": torch.arange(3), "y": torch.zeros(3, 2)}).take(1)
    [{'x': 0, 'y': [0.0, 0.0]}]
    >>> squares = torch.utils.data.TensorDataset(torch.arange(3), torch.arange(3) ** 2)
    >>> windrow.from_torch(squares).take(3)[-1]
    {'item_0': 2, 'item_1': 4}
    """
    columns = _columns(data)
    if columns is not None:
        return dataset_of_tables([table_of_arrays(columns, "from_torch")], "from_torch", target_block_bytes)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise PlanError(
            f"from_torch: {type(data).__qualname__} is no tensor and has no items by number; "
            "use from_generator(lambda: iter(dataset)) for one that is iterated"
        )
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(LogicalPlan(index_items(data, rows_of_samples, "from_torch", size)))


def _columns(data: Any) -> Mapping[str, Any] | None:
    """The columns of tensors; None for items that must be asked for."""
    if isinstance(data, Mapping):
        return data
    if hasattr(data, "detach"):
        return {"item": data}
    tensors = getattr(data, "tensors", None)
    if type(data).__name__ == "TensorDataset" and isinstance(tensors, tuple):
        return {f"item_{place}": tensor for place, tensor in enumerate(tensors)}
    return None
