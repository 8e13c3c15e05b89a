"""read_sql: the rows of a query or a table of a database as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.adapters.sql_partitions import open_partitions, stage_query
from windrow.io.adapters.sql_queries import SqlQuery, check_connection, parse_query


def read_sql(
    query: str,
    connection: Callable[[], Any] | str,
    *,
    partition_column: str | None = None,
    partitions: int | None = None,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, pa.DataType] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Return a dataset of the rows of a SQL query, through any DB-API connection or ADBC.

    With ``partition_column``, blocks are ranges of that column, and each is read by a query of its own, in every epoch
    again. This call counts the rows, reads the first 1,024, and finds the keys at which blocks begin. Without it, this
    call runs the query once and stages its rows on disk, as `from_generator` does.

    Parameters
    ----------
    query
        A SELECT statement, or the name of a table. Names of tables and columns are quoted as in standard SQL
        (``"name"``), so their case counts.
    connection
        A function that opens a connection, such as ``lambda: psycopg.connect(...)``; each block is read over one of
        its own. Processes get the function pickled. Or a URI that ADBC opens, such as
        ``"postgresql://user:password@host/db"`` or ``"sqlite:///trips.db"``; needs the extra ``adbc``.
    partition_column
        A column that is unique and never null, such as the primary key. Rows come in its order.
    partitions
        The number of blocks; None: as many as ``target_block_bytes`` makes of the rows.
    columns
        The columns to read, in this order; None: all.
    dtypes
        Types of columns. Others are those of Arrow with ADBC, else those of the first 1,024 rows: give the types of
        columns in which these are all null, or narrower than what follows.
    cache_dir
        Without ``partition_column``, the folder for staged rows, as in `from_generator`.
    target_block_bytes
        Approximate size of a block in memory: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    SourceError
        If the database cannot be reached or reports an error; if ``partition_column`` has nulls or duplicates; if a
        value does not fit its column. While rows are read, if the table has changed.
    PlanError
        If an argument is invalid, or the driver of a URI is not installed.

    Notes
    -----
    Each block checks that it has the same number of rows, and the same first and last key, as when the dataset was
    made. Values that were updated go unnoticed. A checkpoint fits the same query with the same number of rows and keys;
    of staged rows, with the same values in the same order: give the query an ORDER BY.

    A thread that reads a block waits for as long as the driver does, so set the driver's timeout. ``stall_timeout`` of
    the pipeline reports if nothing moves. States, errors and reprs contain no passwords.

    Partitions need window functions (``ROW_NUMBER``) and quotes around names, as in SQLite 3.25, PostgreSQL, DuckDB and
    SQL Server; MySQL needs ``ANSI_QUOTES``. windrow is tested with SQLite and PostgreSQL.

    Examples
    --------
    >>> import sqlite3, windrow
    >>> db = sqlite3.connect("trips.db")
    >>> made = db.execute("CREATE TABLE trips (id INTEGER PRIMARY KEY, fare REAL)")
    >>> made = db.executemany("INSERT INTO trips (fare) VALUES (?)", [(float(x),) for x in range(100)])
    >>> db.commit(); db.close()
    >>> ds = windrow.read_sql(
    ...     "SELECT id, fare FROM trips WHERE fare >= 10",
    ...     lambda: sqlite3.connect("trips.db"),
    ...     partition_column="id",
    ...     partitions=4,
    ... )
    >>> ds.count(), ds.num_blocks(), ds.take(1)
    (90, 4, [{'id': 11, 'fare': 10.0}])
    """
    statement = SqlQuery(parse_query(query), check_connection(connection))
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    types = _check_types(dtypes)
    chosen = _check_columns(columns)
    if partition_column is None:
        if partitions is not None:
            raise PlanError(f"partitions={partitions!r} needs a partition_column=, whose ranges they are")
        source = stage_query(
            statement, columns=chosen, types=types, cache_dir=cache_dir, target_block_bytes=size
        )
        return Dataset(LogicalPlan(source))
    if not isinstance(partition_column, str) or not partition_column:
        raise PlanError(f"partition_column={partition_column!r} must be the name of a column")
    if cache_dir is not None:
        raise PlanError("cache_dir= is for staged rows: leave it out, or partition_column=")
    count = None if partitions is None else check_count(partitions, "partitions", "or None")
    source = open_partitions(
        statement,
        key=partition_column,
        columns=chosen,
        partitions=count,
        types=types,
        target_block_bytes=size,
    )
    return Dataset(LogicalPlan(source))


def _check_columns(columns: Any) -> list[str] | None:
    if columns is None:
        return None
    names = [] if isinstance(columns, str) else list(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise PlanError(f"columns={columns!r} must be a list of at least one column name, without repetition")
    return names


def _check_types(dtypes: Any) -> dict[str, pa.DataType]:
    if dtypes is None:
        return {}
    if not isinstance(dtypes, Mapping) or not all(isinstance(kind, pa.DataType) for kind in dtypes.values()):
        raise PlanError(f"dtypes={dtypes!r} must be a dict of pyarrow types by column")
    return dict(dtypes)
