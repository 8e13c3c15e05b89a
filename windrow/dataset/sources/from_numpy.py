"""from_numpy: NumPy arrays as a Dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.in_memory import dataset_of_tables
from windrow.dataset.sources.user_columns import table_of_arrays

__all__ = ["from_numpy"]

_COLUMN = "data"


def from_numpy(
    arrays: NDArray[Any] | Mapping[str, NDArray[Any]] | list[Any],
    *,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of NumPy arrays, (rows, ...) each.

    Numbers are not copied: do not change the arrays while the dataset is in use. Arrays of two
    or more dimensions become tensor columns, which are delivered as (rows, ...) arrays.

    Parameters
    ----------
    arrays
        An array, which becomes column ``"data"``; a dict of arrays, one per column; or a list of
        either, which are concatenated.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If arrays differ in length, have no axis of rows, or have a type that Arrow does not support;
        for a tuple, which could mean columns or rows.
    SourceError
        If the elements of a list differ in columns or types.

    Examples
    --------
    >>> import numpy as np, windrow
    >>> ds = windrow.from_numpy({"x": np.arange(4), "image": np.zeros((4, 2, 3), np.float32)})
    >>> batch = ds.take_batch(3)
    >>> batch["x"], batch["image"].shape
    (array([0, 1, 2]), (3, 2, 3))
    """
    parts = arrays if isinstance(arrays, list) else [arrays]
    if any(isinstance(part, tuple) for part in parts):
        raise PlanError(
            "from_numpy: a tuple of arrays could mean columns or rows; give a dict for columns, as in "
            "{'x': x, 'y': y}, or a list of arrays to concatenate"
        )
    columns = [part if isinstance(part, Mapping) else {_COLUMN: part} for part in parts]
    tables = [table_of_arrays(part, "from_numpy") for part in columns]
    return dataset_of_tables(tables, "from_numpy", target_block_bytes)
