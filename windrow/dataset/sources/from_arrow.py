"""from_arrow: Arrow tables in memory as a Dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from windrow.core.errors import PlanError, SourceError
from windrow.core.offsets import check_layout
from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.in_memory import dataset_of_tables

__all__ = ["from_arrow"]


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
    try:
        # the table can be mapped from an untrusted file
        check_layout(value)
    except pa.ArrowInvalid as error:
        raise SourceError(
            f"from_arrow: {error}. If the table was read or mapped from a file, write the file again"
        ) from error
    return value
