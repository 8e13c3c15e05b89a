"""from_items, from_numpy, from_pandas and from_arrow: values, arrays and tables in memory as a Dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import check_supported
from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError, SourceError
from windrow.core.offsets import check_layout
from windrow.core.run_ends import decode_runs
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.user_columns import table_of_arrays, table_of_frame, table_of_items
from windrow.io.in_memory.in_memory_tables import InMemoryBlocks, hold_tables
from windrow.pipeline.executors.choose_executor import ray_is_initialized

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["dataset_of_tables", "from_arrow", "from_items", "from_numpy", "from_pandas"]

_ARRAY_COLUMN = "data"


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
    columns = [part if isinstance(part, Mapping) else {_ARRAY_COLUMN: part} for part in parts]
    tables = [table_of_arrays(part, "from_numpy") for part in columns]
    return dataset_of_tables(tables, "from_numpy", target_block_bytes)


def from_pandas(
    frames: pd.DataFrame | Sequence[pd.DataFrame], *, target_block_bytes: int | str = "64MiB"
) -> Dataset:
    """Return a dataset of pandas DataFrames.

    Numbers without nulls are not copied: do not change the frames while the dataset is in use.
    NaN stays NaN in columns of NumPy floats and becomes null in all others.

    Parameters
    ----------
    frames
        A DataFrame, or a list of DataFrames with the same columns, which are concatenated. An
        index, unless it is an unnamed RangeIndex, becomes the first column or columns, called by
        its name, else ``"index"``.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If Arrow cannot hold a column; the message names it.
    SourceError
        If frames differ in columns or types.

    Examples
    --------
    >>> import pandas as pd, windrow
    >>> windrow.from_pandas(pd.DataFrame({"x": [1, 2], "y": ["a", None]})).take()
    [{'x': 1, 'y': 'a'}, {'x': 2, 'y': None}]
    """
    parts = frames if isinstance(frames, (list, tuple)) else [frames]
    tables = [table_of_frame(frame, "from_pandas") for frame in parts]
    return dataset_of_tables(tables, "from_pandas", target_block_bytes)


def from_arrow(
    tables: pa.Table | pa.RecordBatch | pa.RecordBatchReader | Sequence[pa.Table | pa.RecordBatch],
    *,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of Arrow tables, without copying them.

    Parameters
    ----------
    tables
        A Table, a RecordBatch, a RecordBatchReader (read to its end now), any other object that
        exports an Arrow stream, or a list of these, which are concatenated. Their chunks do not
        matter.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For any other object, or a table without columns.
    SourceError
        If tables differ in columns or types, or a table's buffers are invalid.

    Examples
    --------
    >>> import pyarrow as pa, windrow
    >>> ds = windrow.from_arrow(pa.table({"x": range(6)}), target_block_bytes=16)
    >>> ds.num_blocks(), ds.count()
    (3, 6)
    """
    parts = tables if isinstance(tables, (list, tuple)) else [tables]
    return dataset_of_tables([_to_table(part) for part in parts], "from_arrow", target_block_bytes)


def _to_table(value: Any) -> pa.Table:
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    elif isinstance(value, pa.RecordBatchReader):
        value = value.read_all()
    elif not isinstance(value, pa.Table) and hasattr(value, "__arrow_c_stream__"):
        value = pa.RecordBatchReader.from_stream(value).read_all()
    if not isinstance(value, pa.Table):
        raise PlanError(
            f"from_arrow: {type(value).__qualname__} is not a Table, RecordBatch or RecordBatchReader; "
            "give one, or a list of them"
        )
    if not value.num_columns:
        raise PlanError("from_arrow: a table has no columns; give at least one")
    check_supported(value.schema, "from_arrow")
    try:
        # the table can be mapped from an untrusted file
        check_layout(value)
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"from_arrow: {error}. If the table was read or mapped from a file, write the file again"
        ) from error
    return decode_runs(value)


def dataset_of_tables(tables: Sequence[pa.Table], caller: str, target_block_bytes: int | str) -> Dataset:
    """Return a dataset of the concatenated tables; ``caller`` is named in error messages."""
    if not tables:
        raise PlanError(f"{caller}: there is nothing to read; give at least one")
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(LogicalPlan(hold_tables(tables, caller, size, _reduce_blocks)))


def _reduce_blocks(blocks: InMemoryBlocks) -> tuple[Any, ...] | None:
    """Return what ``__reduce__`` of in-memory blocks returns; None: pickle the blocks themselves."""
    if not ray_is_initialized():
        return None
    from windrow.pipeline.executors.ray.data.object_store import reduce_to_references

    return reduce_to_references(blocks)
