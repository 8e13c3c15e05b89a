"""The rows of a query as a source: ranges of a unique column are the blocks, or all rows are staged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrow_support import check_supported
from windrow.core.errors import PlanError, SourceError
from windrow.core.source import BlockAddress
from windrow.core.tracebacks import trims_traceback
from windrow.io.adapters.sql_queries import (
    SqlQuery,
    iterate_tables,
    quote_column,
    quote_name,
    read_table,
    to_array,
)
from windrow.io.adapters.staged_tables import stage_tables
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.safe_casts import conform_table
from windrow.io.catalog.value_sizes import cut_rows, make_block_table, measure_values

_SAMPLED_ROWS = 1024
# literals in one statement
_CUTS_AT_ONCE = 5_000
_NUMBER = "windrow_number"
_TYPES_FIX = "give the types that hold every value with dtypes=, or CAST columns in the query"


@dataclass(frozen=True)
class _Range:
    """The rows of a block, from the key ``first`` to ``last`` as counted.

    The first block is read from any key on and the last one to any, so that rows added there are noticed too.
    """

    first: Any
    last: Any
    rows: int
    after: Any  # the first key of the next block; None of the last one, since no key is null
    is_first: bool


@dataclass(frozen=True)
class SqlReader(WholeBlockReader):
    """Reads blocks of a query over connections of their own; the locator of a block is a range of keys."""

    query: SqlQuery
    key: str
    schema: pa.Schema
    key_type: pa.DataType

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block in the order of its keys; a SourceError if its keys are others than at planning."""
        span: _Range = address.locator
        names = list(dict.fromkeys([*self.schema.names, self.key]))
        pieces = [f"SELECT {', '.join(map(quote_column, names))} FROM {self.query.rows}"]
        values: list[Any] = []
        for word, value, needed in (
            (">=", span.first, not span.is_first),
            ("<", span.after, span.after is not None),
        ):
            if needed:
                pieces[-1] += f" {'AND' if values else 'WHERE'} {quote_column(self.key)} {word} "
                pieces.append("")
                values.append(value)
        pieces[-1] += f" ORDER BY {quote_column(self.key)}"
        types = {self.key: self.key_type, **dict(zip(self.schema.names, self.schema.types, strict=True))}
        with self.query.execute(address.origin, pieces, values) as cursor:
            table = read_table(cursor, types, address.origin)
        self._check_keys(table, span, address.origin)
        return _fit(table.select(self.schema.names), self.schema, address.origin)

    def _check_keys(self, table: pa.Table, span: _Range, origin: str) -> None:
        if table.num_rows != span.rows:
            how = f"{table.num_rows:,} rows where {span.rows:,} were counted"
        else:
            keys = table[self.key]
            ends = to_array([span.first, span.last], self.key_type, f"{origin}: column {self.key!r}")
            if keys[0].cast(self.key_type).equals(ends[0]) and keys[-1].cast(self.key_type).equals(ends[1]):
                return
            found = f"its keys go from {keys[0].as_py()!r} to {keys[-1].as_py()!r}"
            how = f"{found}, and went from {span.first!r} to {span.last!r}"
        raise SourceError(
            f"{origin}: the table has changed since it was read ({how}): call read_sql() again, and keep the rows as "
            "they are while an epoch runs"
        )


@trims_traceback
def open_partitions(
    query: SqlQuery,
    *,
    key: str,
    columns: Sequence[str] | None,
    partitions: int | None,
    types: Mapping[str, pa.DataType],
    target_block_bytes: int,
) -> ListedSource:
    """Count the rows of a query, and find the keys at which blocks begin and end."""
    rows = _count_rows(query, key)
    sample = _read_sample(query, key, columns, types)
    names = [name for name in sample.column_names if columns is None or name in columns]
    if key not in sample.column_names:
        raise SourceError(
            f"{query.name} has no column {key!r}; it has {', '.join(map(repr, sample.column_names))}"
        )
    schema = pa.schema([sample.schema.field(name) for name in (names if columns is None else columns)])
    check_supported(schema, query.name)
    row_bytes = max(1 / 8, sum(measure_values(field.name, field.type, sample) for field in schema))
    size = max(1, round(rows * row_bytes))
    edges = cut_rows(rows, size, target_block_bytes if partitions is None else max(1, -(-size // partitions)))
    ranges = _find_ranges(query, key, edges.tolist())
    counts = np.array([span.rows for span in ranges], np.int64)
    sizes = np.ceil(counts * row_bytes).astype(np.int64)
    known = [query.text, key, *(f"{field.name}: {field.type}" for field in schema)]
    bounds = [f"{span.first!r} {span.last!r} {span.rows}" for span in ranges]
    return ListedSource(
        name=query.name,
        schema=schema,
        blocks=make_block_table(counts, sizes, schema),
        block_addresses=tuple(
            BlockAddress(f"{query.name}, partition {number}", span) for number, span in enumerate(ranges)
        ),
        reader=SqlReader(query, key, schema, sample.schema.field(key).type),
        fingerprint=hashlib.sha256("\n".join([*known, *bounds]).encode()).hexdigest(),
        null_counts={name: 0 if name == key else None for name in schema.names},
        block_bytes=target_block_bytes,
        fragments=max(1, len(ranges)),
    )


@trims_traceback
def stage_query(
    query: SqlQuery,
    *,
    columns: Sequence[str] | None,
    types: Mapping[str, pa.DataType],
    cache_dir: str | os.PathLike[str] | None,
    target_block_bytes: int,
) -> ListedSource:
    """Run a query once, and stage its rows in the order in which they come."""
    statement = query.text
    if columns is not None:
        statement = f"SELECT {', '.join(map(quote_column, columns))} FROM {query.rows}"
    with query.execute(query.name, [statement]) as cursor:
        tables = iterate_tables(cursor, types, query.name)
        return stage_tables(
            (_with_types(_check_case(table, columns, query.name), types, query.name) for table in tables),
            query.name,
            target_block_bytes,
            cache_dir,
        )


def _count_rows(query: SqlQuery, key: str) -> int:
    """Count the rows; a SourceError if keys are null or not unique."""
    name = quote_column(key)
    statement = f"SELECT COUNT(*), COUNT({name}), COUNT(DISTINCT {name}) FROM {query.rows}"
    counted = query.fetch(query.name, [statement])
    rows, valid, distinct = (int(count) for count in counted[0])
    if valid != rows:
        raise SourceError(
            f"{query.name}: partition_column={key!r} is null in {rows - valid:,} of {rows:,} rows: choose a column "
            f"without nulls, or add WHERE {quote_name(key)} IS NOT NULL to the query"
        )
    if distinct != rows:
        raise SourceError(
            f"{query.name}: partition_column={key!r} has {distinct:,} distinct values in {rows:,} rows, so that the "
            "order of rows would be open: choose a unique column, such as the primary key"
        )
    return rows


def _read_sample(
    query: SqlQuery, key: str, columns: Sequence[str] | None, types: Mapping[str, pa.DataType]
) -> pa.Table:
    """The first rows in the order of the keys, in the columns' types."""
    chosen = "*"
    if columns is not None:
        names = dict.fromkeys([*columns, key])
        chosen = ", ".join(quote_column(name, "windrow_numbered") for name in names)
    numbered = _number_rows(query, key, "windrow_rows.*")
    where = f"WHERE {_NUMBER} <= {_SAMPLED_ROWS} ORDER BY {_NUMBER}"
    statement = f"SELECT {chosen} FROM ({numbered}) windrow_numbered {where}"
    with query.execute(query.name, [statement]) as cursor:
        table = _check_case(read_table(cursor, types, query.name), columns, query.name)
    kept = [name for name in table.column_names if name != _NUMBER]
    return _with_types(table.select(kept), types, query.name)


def _number_rows(query: SqlQuery, key: str, columns: str) -> str:
    """A statement for some columns, and the rank of each row in the order of keys."""
    rank = f"ROW_NUMBER() OVER (ORDER BY {quote_column(key)}) AS {_NUMBER}"
    return f"SELECT {columns}, {rank} FROM {query.rows}"


def _check_case(table: pa.Table, columns: Sequence[str] | None, name: str) -> pa.Table:
    """Return a table; a PlanError if the database found its columns by names in another case."""
    missing = next((column for column in columns or () if column not in table.column_names), None)
    if missing is not None:
        raise PlanError(
            f"columns= names {missing!r}, which is not a column of {name}: it has {table.column_names}; case counts"
        )
    return table


def _with_types(table: pa.Table, types: Mapping[str, pa.DataType], name: str) -> pa.Table:
    """Cast columns to the types that the user gave."""
    unknown = sorted(types.keys() - set(table.column_names))
    if unknown:
        raise PlanError(
            f"dtypes= names {unknown[0]!r}, which is not a column of {name}: it has {table.column_names}"
        )
    return _fit(
        table, pa.schema([(field.name, types.get(field.name, field.type)) for field in table.schema]), name
    )


def _fit(table: pa.Table, schema: pa.Schema, origin: str) -> pa.Table:
    """Cast a table to a schema; a column of nulls has any type, since SQLite has none for it."""
    for place, column in enumerate(table.columns):
        kind = schema.field(table.column_names[place]).type
        if column.null_count == len(column) and column.type != kind:
            table = table.set_column(place, table.column_names[place], pa.nulls(len(column), kind))
    return conform_table(table, schema, origin, _TYPES_FIX)


def _find_ranges(query: SqlQuery, key: str, edges: Sequence[int]) -> list[_Range]:
    """The first and last key of each block, whose rows have the ranks ``edges`` in the order of keys."""
    spans = [(start, stop) for start, stop in pairwise(edges) if stop > start]
    wanted = sorted({rank for start, stop in spans for rank in (start + 1, stop)})
    found: dict[int, Any] = {}
    numbered = _number_rows(query, key, f"{quote_column(key)} AS windrow_key")
    for place in range(0, len(wanted), _CUTS_AT_ONCE):
        ranks = ", ".join(map(str, wanted[place : place + _CUTS_AT_ONCE]))
        statement = (
            f"SELECT {_NUMBER}, windrow_key FROM ({numbered}) windrow_numbered WHERE {_NUMBER} IN ({ranks})"
        )
        found.update({int(rank): _copy_bytes(value) for rank, value in query.fetch(query.name, [statement])})
    if found.keys() != set(wanted):
        raise SourceError(f"{query.name}: rows were deleted while it was planned; call read_sql() again")
    return [
        _Range(
            found[start + 1],
            found[stop],
            stop - start,
            None if stop == edges[-1] else found[stop + 1],
            start == edges[0],
        )
        for start, stop in spans
    ]


def _copy_bytes(value: Any) -> Any:
    """A key; bytes for the views of them that some drivers return, which cannot be pickled."""
    return bytes(value) if isinstance(value, (memoryview, bytearray)) else value
