"""A dataset of what a function yields."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.empty_tables import empty_table
from windrow.core.errors import PlanError, TransformError, WindrowError
from windrow.core.integers import as_integer
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.user_columns import is_frame, table_of_arrays, table_of_frame, table_of_items
from windrow.io.adapters.staging import stage_tables
from windrow.pipeline.tasks.transforms import function_name

__all__ = ["from_generator"]

_ROWS_AT_ONCE = 1024


def from_generator(
    fn: Callable[[], Iterable[Any]],
    *,
    rows: int | None = None,
    batched: bool = False,
    schema: pa.Schema | Mapping[str, pa.DataType] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of what a function yields, staged on disk once.

    A shuffle reads blocks in any order and in every epoch anew, which no generator can do. So
    this call runs it once, to its end, and writes its rows into Arrow files of one block each;
    epochs map these into memory. Memory holds one block at a time. The files are removed when
    the last dataset of them has gone or, where they were sent to other processes, when this
    process ends.

    Parameters
    ----------
    fn
        Called once, without arguments; returns an iterator of rows (dicts with a value for each
        column, or single values as column ``"item"``), or of Tables, RecordBatches or
        DataFrames.
    rows
        How many rows must come; None: as many as come.
    batched
        Whether dicts are batches: an array for each column, (rows, ...) each.
    schema
        The columns and their types; None: as in the first 1,024 rows, or the first batch.
    cache_dir
        Where to stage; None: the system's folder for temporary files. For workers on other
        machines, a folder that all of them see.
    target_block_bytes
        Blocks have about so many bytes: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For a wrong argument.
    TransformError
        If the function raises, or yields something else.
    SourceError
        If other rows come than were stated, they do not fit the columns, or there is no room.

    Examples
    --------
    >>> import windrow
    >>> def squares():
    ...     for x in range(1000):
    ...         yield {"x": x, "square": x * x}
    >>> ds = windrow.from_generator(squares, rows=1000)
    >>> ds.count(), ds.take(3)[-1]
    (1000, {'x': 2, 'square': 4})
    """
    if not callable(fn):
        raise PlanError(
            f"from_generator: {type(fn).__qualname__} cannot be called; give a function that returns an "
            "iterator, as in lambda: iter(rows)"
        )
    stated = None if rows is None else as_integer(rows)
    if rows is not None and (stated is None or stated < 0):
        raise PlanError(f"rows={rows!r} must be an integer of 0 or more, or None")
    if schema is not None and not isinstance(schema, pa.Schema):
        try:
            schema = pa.schema(schema)
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"schema={schema!r} must be a pyarrow.Schema, or a dict of types by column"
            ) from error
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    name = f"from_generator({function_name(fn)})"
    tables = _tables(_called(fn, name), name, batched=batched, schema=schema)
    return Dataset(LogicalPlan(stage_tables(tables, name, size, cache_dir, stated)))


def _called(fn: Callable[[], Iterable[Any]], name: str) -> Iterator[Any]:
    """What the function yields; what it raises is told as its own."""
    try:
        yield from fn()
    except Exception as error:
        raise TransformError(f"{name}: {type(error).__name__}: {error}") from error


def _tables(
    items: Iterator[Any], name: str, *, batched: bool, schema: pa.Schema | None
) -> Iterator[pa.Table]:
    if schema is not None:
        yield empty_table(schema)
    for item in items:
        table = _table(item, name, batched=batched)
        if table is None:
            # as within the first rows, a key that a row lacks is null there
            table = _filled(_of_rows([item, *islice(items, _ROWS_AT_ONCE - 1)], name), schema)
        schema = table.schema if schema is None else schema
        yield table


def _filled(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    for field in schema or ():
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


def _table(item: Any, name: str, *, batched: bool) -> pa.Table | None:
    """A batch as a table; None for a row."""
    if isinstance(item, pa.Table):
        return item
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    try:
        if is_frame(item):
            return table_of_frame(item, name)
        if batched and isinstance(item, Mapping):
            return table_of_arrays(item, name)
    except PlanError as error:
        raise TransformError(str(error)) from error
    if batched:
        raise TransformError(f"{name} yielded {type(item).__qualname__}; yield dicts of arrays, or Tables")
    return None


def _of_rows(rows: list[Any], name: str) -> pa.Table:
    try:
        return table_of_items(rows, name)
    except WindrowError as error:
        raise TransformError(str(error)) from error
