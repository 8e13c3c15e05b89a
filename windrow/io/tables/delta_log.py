"""List the files of a Delta table's version from its log: paths, constants, deletion vectors, pruning."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.io.catalog.filters import check_filter
from windrow.io.storage.credentials import without_user
from windrow.io.tables.column_mapping import TableColumns, plain_schema
from windrow.io.tables.file_pruning import ColumnStatistics, candidate_files, supports_pruning
from windrow.io.tables.logged_files import LoggedFile

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["list_files"]

# the log truncates maxima of timestamps to milliseconds
_BOUND_STEP = datetime.timedelta(milliseconds=1)


def list_files(
    table: Any, columns: TableColumns, filter: pc.Expression | None
) -> tuple[list[LoggedFile], int]:
    """List the files of a version that pass pruning, and count the pruned ones.

    Raises
    ------
    SourceError
        If files lie outside of the table's directory.
    PlanError
        If the filter does not fit the columns.
    """
    actions = pa.table(table.get_add_actions(flatten=False))
    paths, constants = _paths(actions), _constants(actions, columns)
    deleted = _deleted(table, paths)
    kept = _prune(actions, constants, columns, filter)
    files = [LoggedFile(paths[place], constants[place], deleted.get(paths[place])) for place in kept]
    return files, len(paths) - len(files)


def _deleted(table: Any, paths: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """The positions of deleted rows by file path."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    known = {f"{table.table_uri.rstrip('/')}/{path}": path for path in paths}
    deleted = {}
    for batch in pa.table(table.deletion_vectors()).to_batches():
        for uri, keeps in zip(batch["filepath"], batch["selection_vector"], strict=True):
            # the URI can be percent-encoded once more than the path
            path = known.get(uri.as_py()) or known.get(unquote(uri.as_py()))
            if path is None:
                raise SourceError(
                    f"rows of {without_user(uri.as_py())} are deleted, which is not a file of the table"
                )
            deleted[path] = np.flatnonzero(~keeps.values.to_numpy(zero_copy_only=False))
    return deleted


def _paths(actions: pa.Table) -> list[str]:
    """The paths of files relative to the table; the log percent-encodes them."""
    found = [unquote(path) for path in actions["path"].to_pylist()]
    outside = next((path for path in found if "://" in path or path.startswith("/")), None)
    if outside is not None:
        raise SourceError(
            f"{without_user(outside)} lies outside of the table, as files of a shallow clone do: make a deep copy"
        )
    return found


def _constants(actions: pa.Table, columns: TableColumns) -> list[dict[str, Any]]:
    """(files,) the values of the partition columns."""
    if not columns.log_columns:
        return [{} for _ in range(actions.num_rows)]
    values = actions["partition"].to_pylist()
    return [{name: value[name] for name in columns.log_columns} for value in values]


def _prune(
    actions: pa.Table,
    constants: Sequence[Mapping[str, Any]],
    columns: TableColumns,
    filter: pc.Expression | None,
) -> list[int]:
    """The indices of files that can hold rows matching the filter."""
    if filter is None:
        return list(range(actions.num_rows))
    schema = plain_schema(columns.schema)
    check_filter(filter, schema)
    statistics = _statistics(actions, schema, columns)
    known = [
        {
            **found,
            **{name: ColumnStatistics(value, value, int(value is None), 1) for name, value in values.items()},
        }
        for found, values in zip(statistics, constants, strict=True)
    ]
    return np.flatnonzero(candidate_files(filter, schema, known)).tolist()


def _statistics(
    actions: pa.Table, schema: pa.Schema, columns: TableColumns
) -> list[dict[str, ColumnStatistics]]:
    """(files,) column statistics by table column; the log names columns as the files do."""
    found: list[dict[str, ColumnStatistics]] = [{} for _ in range(actions.num_rows)]
    rows = actions["num_records"].to_pylist()
    for column in columns.stored:
        (physical, *_) = columns.names.get(column.name, (column.name,))
        minima, maxima, nulls = (
            _read_statistic(actions, of, physical, column.type) for of in ("min", "max", "null_count")
        )
        if not supports_pruning(column.type):
            minima = maxima = [None] * len(rows)
        for place, (minimum, maximum, null, count) in enumerate(
            zip(minima, maxima, nulls, rows, strict=True)
        ):
            if maximum is not None and pt.is_timestamp(column.type):
                maximum += _BOUND_STEP
            found[place][column.name] = ColumnStatistics(minimum, maximum, null, count)
    return found


def _read_statistic(actions: pa.Table, of: str, name: str, kind: pa.DataType) -> list[Any]:
    nothing = [None] * actions.num_rows
    if of not in actions.column_names:
        return nothing
    struct = actions.schema.field(of).type
    place = struct.get_field_index(name)
    expected = pa.int64() if of == "null_count" else kind
    # statistics of a nested column describe its leaves
    if place < 0 or struct.field(place).type != expected:
        return nothing
    return [None if value is None else value[name] for value in actions[of].to_pylist()]
