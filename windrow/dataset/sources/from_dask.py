"""from_dask: a dask DataFrame as a Dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from windrow.core.errors import PlanError, SourceError
from windrow.core.integers import as_integer
from windrow.core.optional_dependencies import require
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.from_memory import table_of_frame
from windrow.io.adapters.dask_partitions import list_partitions


def from_dask(frame: Any, *, rows: Sequence[int] | None = None, schema: pa.Schema | None = None) -> Dataset:
    """Return a dataset of a dask DataFrame, one block per partition; needs the extra ``dask``.

    Partitions are computed block by block in the processes that read them, in every epoch again;
    ``frame.persist()`` or ``options(cache=...)`` avoids the repetition. The first partition with
    rows is computed now, to find the types.

    Parameters
    ----------
    frame
        A dask DataFrame. A named index becomes a column; an unnamed one is dropped.
    rows
        (partitions,) number of rows of each partition, as ``frame.map_partitions(len).compute()``
        returns them. With it, row counts are known before anything is read.
    schema
        The columns and their types; None: those of the first partition that has rows.

    Raises
    ------
    PlanError
        If an argument is invalid, or dask is not installed.
    SourceError
        If a partition cannot be computed.

    Notes
    -----
    A checkpoint identifies the data by dask's name of the frame, a digest of its task graph.

    Examples
    --------
    >>> import dask.dataframe as dd, pandas as pd, windrow
    >>> frame = dd.from_pandas(pd.DataFrame({"x": range(6)}), npartitions=3)
    >>> ds = windrow.from_dask(frame)
    >>> ds.num_blocks(), ds.count(), ds.take(1)
    (3, 6, [{'x': 0}])
    """
    dask = require("dask.dataframe", "dask", "from_dask()")
    if not isinstance(frame, dask.DataFrame):
        raise PlanError(f"from_dask: {type(frame).__qualname__} is not a dask DataFrame; give one")
    counts = None if rows is None else _check_rows(rows, frame.npartitions)
    return Dataset(LogicalPlan(list_partitions(frame, _table_of_partition, "from_dask", counts, schema)))


def _check_rows(rows: Sequence[int], partitions: int) -> list[int]:
    counts = [as_integer(count) for count in rows]
    if len(counts) != partitions or any(count is None or count < 0 for count in counts):
        raise PlanError(f"rows= must have an integer of 0 or more for each of {partitions} partitions")
    return [count or 0 for count in counts]


def _table_of_partition(frame: Any, origin: str) -> pa.Table:
    try:
        return table_of_frame(frame if any(frame.index.names) else frame.reset_index(drop=True), origin)
    except PlanError as error:
        raise SourceError(str(error)) from error
