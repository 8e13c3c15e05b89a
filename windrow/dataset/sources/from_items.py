"""from_items: Python values as a Dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.in_memory import dataset_of_tables
from windrow.dataset.sources.user_columns import table_of_items

__all__ = ["from_items"]


def from_items(items: Iterable[Any], *, target_block_bytes: int | str = "64MiB") -> Dataset:
    """Return a dataset of Python values, one per row.

    Parameters
    ----------
    items
        Dicts with one value per column (missing keys are null), or single values, which become
        column ``"item"``. Arrays of equal shape become (rows, ...) columns.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If there are no items, or they cannot be converted to columns.

    Examples
    --------
    >>> import windrow
    >>> windrow.from_items([3, 1, 2]).take(2)
    [{'item': 3}, {'item': 1}]
    >>> windrow.from_items([{"x": 1, "y": "a"}, {"x": 2}]).take()
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': None}]
    """
    return dataset_of_tables([table_of_items(items, "from_items")], "from_items", target_block_bytes)
