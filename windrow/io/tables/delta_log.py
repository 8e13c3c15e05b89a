"""What the log of a Delta table says of its files, as the library tells it."""

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
from windrow.io.tables.file_pruning import Bounds, has_bounds, kept_files
from windrow.io.tables.logged_files import LoggedFile

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["list_files"]

# bounds of times are cut to milliseconds
_BOUND_STEP = datetime.timedelta(milliseconds=1)


def list_files(
    table: Any, columns: TableColumns, filter: pc.Expression | None
) -> tuple[list[LoggedFile], int]:
    """The files of a version that a filter may keep rows of, and how many others there are.

    Raises
    ------
    SourceError
        If files lie outside of the table.
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
    """The positions of deleted rows, by the path of their file."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    known = {f"{table.table_uri.rstrip('/')}/{path}": path for path in paths}
    deleted = {}
    for batch in pa.table(table.deletion_vectors()).to_batches():
        for uri, keeps in zip(batch["filepath"], batch["selection_vector"], strict=True):
            # a path may be quoted once more as a URI
            path = known.get(uri.as_py()) or known.get(unquote(uri.as_py()))
            if path is None:
                raise SourceError(
                    f"rows of {without_user(uri.as_py())} are deleted, which is no file of the table"
                )
            deleted[path] = np.flatnonzero(~keeps.values.to_numpy(zero_copy_only=False))
    return deleted


def _paths(actions: pa.Table) -> list[str]:
    """The paths of files, below the table's; the log has them quoted."""
    found = [unquote(path) for path in actions["path"].to_pylist()]
    outside = next((path for path in found if "://" in path or path.startswith("/")), None)
    if outside is not None:
        raise SourceError(
            f"{without_user(outside)} lies outside of the table, as files of a shallow clone do: make a deep copy"
        )
    return found


def _constants(actions: pa.Table, columns: TableColumns) -> list[dict[str, Any]]:
    """The value of each partition column, by file."""
    if not columns.told:
        return [{} for _ in range(actions.num_rows)]
    values = actions["partition"].to_pylist()
    return [{name: value[name] for name in columns.told} for value in values]


def _prune(
    actions: pa.Table,
    constants: Sequence[Mapping[str, Any]],
    columns: TableColumns,
    filter: pc.Expression | None,
) -> list[int]:
    """The places of files that a filter may keep rows of."""
    if filter is None:
        return list(range(actions.num_rows))
    schema = plain_schema(columns.schema)
    check_filter(filter, schema)
    bounded = _bounds(actions, schema, columns)
    known = [
        {**bounds, **{name: Bounds(value, value, int(value is None), 1) for name, value in told.items()}}
        for bounds, told in zip(bounded, constants, strict=True)
    ]
    return np.flatnonzero(kept_files(filter, schema, known)).tolist()


def _bounds(actions: pa.Table, schema: pa.Schema, columns: TableColumns) -> list[dict[str, Bounds]]:
    """What statistics say of the columns of each file; they name them as the file does."""
    found: list[dict[str, Bounds]] = [{} for _ in range(actions.num_rows)]
    rows = actions["num_records"].to_pylist()
    for column in columns.stored:
        (physical, *_) = columns.names.get(column.name, (column.name,))
        lows, highs, nulls = (
            _statistic(actions, of, physical, column.type) for of in ("min", "max", "null_count")
        )
        if not has_bounds(column.type):
            lows = highs = [None] * len(rows)
        for place, (low, high, null, count) in enumerate(zip(lows, highs, nulls, rows, strict=True)):
            if high is not None and pt.is_timestamp(column.type):
                high += _BOUND_STEP
            found[place][column.name] = Bounds(low, high, null, count)
    return found


def _statistic(actions: pa.Table, of: str, name: str, kind: pa.DataType) -> list[Any]:
    nothing = [None] * actions.num_rows
    if of not in actions.column_names:
        return nothing
    struct = actions.schema.field(of).type
    place = struct.get_field_index(name)
    wanted = pa.int64() if of == "null_count" else kind
    # nested columns have statistics of what is in them
    if place < 0 or struct.field(place).type != wanted:
        return nothing
    return [None if value is None else value[name] for value in actions[of].to_pylist()]
