"""from_polars: polars DataFrames and LazyFrames as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.from_memory import dataset_of_tables
from windrow.io.adapters.staged_tables import stage_tables


def from_polars(
    frames: Any,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of polars frames; needs the extra ``polars``.

    A DataFrame stays in memory; numbers are not copied. For a LazyFrame, polars' streaming engine
    runs the query once, now, and its rows are staged on disk as in `from_generator`. Before 1.34,
    polars holds the result of the query in memory while it is staged.

    Parameters
    ----------
    frames
        A DataFrame, a list of DataFrames with the same columns, or a LazyFrame.
    cache_dir
        The folder for the staged rows of a LazyFrame; None: the system's temporary folder.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For any other object, or if polars is not installed.
    SourceError
        If frames differ in columns or types, or a query fails.

    Examples
    --------
    >>> import polars as pl, windrow
    >>> windrow.from_polars(pl.DataFrame({"x": [1, 2], "y": ["a", "b"]})).take(1)
    [{'x': 1, 'y': 'a'}]
    >>> windrow.from_polars(pl.LazyFrame({"x": [1, 2, 3]}).filter(pl.col("x") > 1)).count()
    2
    """
    polars = require("polars", "polars", "from_polars()")
    if isinstance(frames, polars.LazyFrame):
        size = parse_bytes(target_block_bytes, "target_block_bytes")
        return Dataset(LogicalPlan(stage_tables(_collect(frames), "from_polars", size, cache_dir)))
    parts = frames if isinstance(frames, (list, tuple)) else [frames]
    for part in parts:
        if not isinstance(part, polars.DataFrame):
            raise PlanError(
                f"from_polars: {type(part).__qualname__} is not a polars DataFrame or LazyFrame; give one"
            )
    return dataset_of_tables([_to_arrow(part) for part in parts], "from_polars", target_block_bytes)


def _collect(query: Any) -> Iterator[pa.Table]:
    polars = require("polars", "polars", "from_polars()")
    try:
        yield _to_arrow(polars.DataFrame(schema=query.collect_schema()))
        for batch in _batches(query):
            yield _to_arrow(batch)
    except polars.exceptions.PolarsError as error:
        raise SourceError(f"from_polars: the query failed ({type(error).__name__}: {error})") from error


def _batches(query: Any) -> Iterator[Any]:
    if hasattr(query, "collect_batches"):
        return iter(query.collect_batches(maintain_order=True))
    # polars before 1.34 returns a query's result as a whole only
    return iter([query.collect()])


def _to_arrow(frame: Any) -> pa.Table:
    polars = require("polars", "polars", "from_polars()")
    if not frame.width:
        raise PlanError("from_polars: a DataFrame has no columns; give at least one")
    # the oldest layout of text: other libraries do not support string views
    table = frame.to_arrow(compat_level=polars.CompatLevel.oldest())
    return pa.table(table.columns, schema=pa.schema([field.remove_metadata() for field in table.schema]))
