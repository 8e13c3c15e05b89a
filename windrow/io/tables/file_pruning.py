"""Prune data files by column statistics: which files can hold a row that matches a filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.io.catalog.filters import check_filter
from windrow.io.tables.column_mapping import TableColumns, plain_schema

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["ColumnStatistics", "candidate_files", "prune_files", "supports_pruning"]


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of a column in one file, each None if unknown: bounds of what is not null, nulls, values."""

    min: Any = None
    max: Any = None
    nulls: int | None = None
    rows: int | None = None


def supports_pruning(kind: pa.DataType) -> bool:
    """Whether pruning uses statistics of a type; not of floats, whose statistics ignore NaN."""
    return any(check(kind) for check in (pt.is_integer, pt.is_date32, pt.is_timestamp, pt.is_string))


def prune_files(
    filter: pc.Expression | None,
    columns: TableColumns,
    files: int,
    find_statistics: Callable[[pa.Schema], Sequence[Mapping[str, ColumnStatistics]]],
) -> list[int]:
    """The indices of files that can hold rows matching a filter, which has to fit the columns.

    ``find_statistics`` gets the columns as files are read, and returns (files,) statistics by column.
    """
    if filter is None:
        return list(range(files))
    schema = plain_schema(columns.schema)
    check_filter(filter, schema)
    return np.flatnonzero(candidate_files(filter, schema, find_statistics(schema))).tolist()


def candidate_files(
    expression: pc.Expression, schema: pa.Schema, files: Sequence[Mapping[str, ColumnStatistics]]
) -> NDArray[np.bool_]:
    """(files,) whether each can hold a row for which an expression is true; reads no file.

    Arrow simplifies the expression by a guarantee per fragment, as it does for Parquet statistics.
    """
    import pyarrow.dataset as ds
    import pyarrow.fs as pa_fs

    format, nowhere = ds.ParquetFileFormat(), pa_fs.LocalFileSystem()
    fragments = [
        format.make_fragment(str(place), nowhere, partition_expression=_guarantee(schema, statistics))
        for place, statistics in enumerate(files)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, format, nowhere)
    kept = np.zeros(len(files), np.bool_)
    kept[[int(fragment.path) for fragment in dataset.get_fragments(filter=expression)]] = True
    return kept


def _guarantee(schema: pa.Schema, columns: Mapping[str, ColumnStatistics]) -> pc.Expression:
    import pyarrow.compute as pc

    guarantee = pc.scalar(True)
    for name, statistics in columns.items():
        for condition in _conditions(pc.field(name), schema.field(name).type, statistics):
            guarantee = guarantee & condition
    return guarantee


def _conditions(
    column: pc.Expression, kind: pa.DataType, statistics: ColumnStatistics
) -> list[pc.Expression]:
    if statistics.nulls is not None and statistics.nulls == statistics.rows:
        return [column.is_null()]
    conditions = []
    if statistics.min is not None:
        conditions.append(column >= pa.scalar(statistics.min, kind))
    if statistics.max is not None:
        conditions.append(column <= pa.scalar(statistics.max, kind))
    return conditions if statistics.nulls == 0 else [condition | column.is_null() for condition in conditions]
