"""from_huggingface: a Hugging Face ``datasets.Dataset`` as a Dataset."""

from __future__ import annotations

from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.from_memory import dataset_of_tables
from windrow.io.adapters.huggingface import list_rows
from windrow.io.catalog.safe_casts import plain_table


def from_huggingface(dataset: Any, *, target_block_bytes: int | str = "64MiB") -> Dataset:
    """Return the rows of a Hugging Face ``datasets.Dataset``; needs the extra ``huggingface``.

    Nothing is copied: every process that reads maps the dataset's memory-mapped files itself, so
    they must exist under the same path on other machines. Selections by ``select``, ``shuffle``,
    ``filter`` and ``train_test_split`` are read through the dataset's indices. Columns are read
    as stored: formats and transforms of the dataset are not applied, images stay bytes, and
    arrays of fixed shape (``Array2D`` ...) are tensors.

    Parameters
    ----------
    dataset
        A ``Dataset``, that is, one split of a ``DatasetDict``.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For a ``DatasetDict``, an ``IterableDataset`` or any other object, or if ``datasets`` is not
        installed; the message names the alternative.

    Notes
    -----
    A checkpoint identifies each file by its size and the content of 64 evenly spaced pages.

    Examples
    --------
    >>> import datasets, windrow
    >>> rows = datasets.Dataset.from_dict({"x": [1, 2, 3, 4]})
    >>> windrow.from_huggingface(rows.select([3, 0])).take()
    [{'x': 4}, {'x': 1}]
    """
    library = require("datasets", "huggingface", "from_huggingface()")
    if isinstance(dataset, library.IterableDataset):
        raise PlanError(
            "from_huggingface: an IterableDataset can only be read in one order; use "
            "from_generator(lambda: iter(dataset)), which stages its rows, or load it with streaming=False"
        )
    if isinstance(dataset, dict):
        splits = ", ".join(map(repr, dataset))
        raise PlanError(
            f"from_huggingface: a {type(dataset).__name__} has splits ({splits}): give one of them"
        )
    if not isinstance(dataset, library.Dataset):
        raise PlanError(f"from_huggingface: {type(dataset).__qualname__} is not a datasets.Dataset; give one")
    if not dataset.column_names:
        raise PlanError("from_huggingface: the dataset has no columns; give at least one")
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    if not dataset.cache_files:
        table = plain_table(dataset.with_format("arrow")[:])
        return dataset_of_tables([table], "from_huggingface", size)
    return Dataset(LogicalPlan(list_rows(dataset, "from_huggingface", size)))
