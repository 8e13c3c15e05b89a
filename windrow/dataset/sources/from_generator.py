"""from_generator: the rows that a function yields, staged on disk as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from windrow.core.arrow_support import empty_table
from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError, TransformError, WindrowError
from windrow.core.integers import check_count
from windrow.core.user_functions import function_name
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.from_memory import is_frame, table_of_arrays, table_of_frame, table_of_items
from windrow.io.adapters.staged_tables import stage_tables

_ROWS_PER_TABLE = 1024


def from_generator(
    fn: Callable[[], Iterable[Any]],
    *,
    rows: int | None = None,
    batched: bool = False,
    schema: pa.Schema | Mapping[str, pa.DataType] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of the rows that a function yields, staged on disk.

    A shuffle reads blocks in random order and in every epoch again, which a generator does not
    support. So this call runs the generator once, to its end, and writes its rows to Arrow files
    of one block each, which epochs map into memory. One block is in memory at a time while
    writing. The files are deleted when the last dataset that uses them is garbage-collected, or
    at the end of this process if they were sent to other processes.

    Parameters
    ----------
    fn
        Called once, without arguments; returns an iterator of rows (dicts with one value per
        column, or single values, which become column ``"item"``), or of Tables, RecordBatches or
        DataFrames.
    rows
        The number of rows that ``fn`` must yield; None: any number.
    batched
        Whether dicts are batches: one array per column, (rows, ...) each.
    schema
        The columns and their types; None: those of the first 1,024 rows, or of the first batch.
    cache_dir
        The folder for staged files; None: the system's temporary folder. Workers on other
        machines need a folder that all machines share.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        If an argument is invalid.
    TransformError
        If the function raises, or yields other objects.
    SourceError
        If the number of rows is not ``rows``, rows do not fit the columns, or files cannot be written.

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
    stated = None if rows is None else check_count(rows, "rows", "or None", least=0)
    if schema is not None and not isinstance(schema, pa.Schema):
        try:
            schema = pa.schema(schema)
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"schema={schema!r} must be a pyarrow.Schema, or a dict of types by column"
            ) from error
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    name = f"from_generator({function_name(fn)})"
    tables = _tables(_iterate(fn, name), name, batched=batched, schema=schema)
    return Dataset(LogicalPlan(stage_tables(tables, name, size, cache_dir, stated)))


def _iterate(fn: Callable[[], Iterable[Any]], name: str) -> Iterator[Any]:
    """Yield the function's items; wrap its exceptions in a TransformError that names it."""
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
            # missing keys are null, as they are within the first rows
            table = _add_missing_columns(_of_rows([item, *islice(items, _ROWS_PER_TABLE - 1)], name), schema)
        schema = table.schema if schema is None else schema
        yield table


def _add_missing_columns(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    for field in schema or ():
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


def _table(item: Any, name: str, *, batched: bool) -> pa.Table | None:
    """Return a batch as a table; None if ``item`` is a row."""
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
