"""from_torch: torch tensors or a map-style torch Dataset as a Dataset; does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError, SourceError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.from_memory import dataset_of_tables, table_of_arrays, table_of_items
from windrow.io.adapters.map_style import index_items


def from_torch(data: Any, *, target_block_bytes: int | str = "64MiB") -> Dataset:
    """Return a dataset of torch tensors, or of a map-style torch ``Dataset``.

    Tensors, (rows, ...) each, are not copied if they are in main memory: do not change them while
    the dataset is in use. The items of a map-style Dataset are fetched block by block in the
    processes that read them, in every epoch again; it must be picklable to be read in other
    processes. A few items are fetched now, to find columns and types.

    Parameters
    ----------
    data
        A Tensor, which becomes column ``"item"``; a dict of tensors, one per column; a
        ``TensorDataset``, whose tensors become columns ``"item_0"``, ``"item_1"`` ...; or an
        object with ``__len__`` and ``__getitem__``, whose items are tensors or numbers
        (``"item"``), dicts of them, or tuples (``"item_0"`` ...).
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For any other object; use `from_generator` for an iterable-style Dataset.

    Notes
    -----
    A checkpoint identifies a map-style Dataset by its class, its length and its columns' types;
    changed values are not detected.

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
            f"from_torch: {type(data).__qualname__} is neither a tensor nor a map-style dataset; "
            "use from_generator(lambda: iter(dataset)) for an iterable-style one"
        )
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(LogicalPlan(index_items(data, _rows_of_samples, "from_torch", size)))


def _columns(data: Any) -> Mapping[str, Any] | None:
    """Return the columns if ``data`` consists of tensors; None for a map-style Dataset."""
    if isinstance(data, Mapping):
        return data
    if hasattr(data, "detach"):
        return {"item": data}
    tensors = getattr(data, "tensors", None)
    if type(data).__name__ == "TensorDataset" and isinstance(tensors, tuple):
        return {f"item_{place}": tensor for place, tensor in enumerate(tensors)}
    return None


def _rows_of_samples(samples: Sequence[Any], caller: str) -> pa.Table:
    """Return a table of samples: dicts by column, tuples as ``item_0``, ``item_1`` ..., others as ``item``."""
    try:
        return table_of_items([_row(sample) for sample in samples], caller)
    except ValueError as error:
        raise SourceError(str(error)) from error


def _row(sample: Any) -> Any:
    if isinstance(sample, tuple) and hasattr(sample, "_asdict"):
        return sample._asdict()
    if isinstance(sample, (tuple, list)):
        return {f"item_{place}": value for place, value in enumerate(sample)}
    return dict(sample) if isinstance(sample, Mapping) else sample
