"""Open Delta Lake tables: deltalake reads the log, windrow reads the data files.

The log states the files of a version: paths, constants, deletion vectors, and statistics to prune files by.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.core.system.files import forward_slashes
from windrow.core.tracebacks import trims_traceback
from windrow.io.storage.credentials import check_options, find_secrets, redact, without_user
from windrow.io.tables.column_mapping import TableColumns
from windrow.io.tables.data_files import (
    ColumnStatistics,
    LoggedFile,
    TableFiles,
    prune_files,
    supports_pruning,
)
from windrow.io.tables.library_errors import check_time_zone, mapped_errors
from windrow.io.tables.snapshot_source import Snapshot, TableSource, open_snapshot

if TYPE_CHECKING:
    import pyarrow.compute as pc

DeltaVersion = int | str | datetime.datetime

_FIX = "check the path, the version (vacuuming removes old ones), the credentials and storage_options="
# the log truncates maxima of timestamps to milliseconds
_BOUND_STEP = datetime.timedelta(milliseconds=1)
# reader features that windrow or the library supports
_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
_MAPPED_NAME, _MAPPED_ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"


@trims_traceback
def open_delta(
    table: Any,
    *,
    columns: Sequence[str] | None,
    filter: pc.Expression | None,
    version: DeltaVersion | None,
    storage_options: Mapping[str, str] | None,
    target_block_bytes: int | None,
) -> TableSource:
    """Resolve a table to the files of one version."""
    library = require("deltalake", "delta", "read_delta()")
    options = check_options(storage_options or getattr(table, "_storage_options", None))
    secrets = find_secrets(options)
    uri = table.table_uri if isinstance(table, library.DeltaTable) else _check_uri(table)
    display_name = redact(uri.removeprefix("file://"), secrets)
    with mapped_errors(f"the Delta table {display_name} cannot be opened", secrets, _FIX):
        if version is not None or not isinstance(table, library.DeltaTable):
            table = _load(library, uri, version, options)
        known = table.version()
        label = f"version {known}"
        _check_features(table.protocol(), display_name)
        found = _find_columns(table)
        files = _locate(table.table_uri, options, f"{label} of the Delta table {display_name}", secrets)
        logged, others = _list_files(table, found, filter)
        snapshot = Snapshot("Delta", str(table.metadata().id), str(known), label)
    return open_snapshot(
        files,
        snapshot,
        logged,
        found,
        select=columns,
        filter=filter,
        target_block_bytes=target_block_bytes,
        pruned_files=others,
    )


def _check_uri(table: Any) -> str:
    if not isinstance(table, (str, os.PathLike)) or not str(table):
        raise PlanError(f"table={table!r}: give the table's path or URL, or a deltalake.DeltaTable")
    uri = os.fspath(table)
    return uri if "://" in uri else os.path.abspath(uri)


def _load(library: Any, uri: str, version: DeltaVersion | None, options: dict[str, str]) -> Any:
    if isinstance(version, bool) or not isinstance(version, (int, str, datetime.datetime, type(None))):
        raise PlanError(
            f"version={version!r}: give a number, a time, or a time as text like '2026-01-31T12:00:00Z'"
        )
    if isinstance(version, datetime.datetime):
        check_time_zone("version", version)
    if isinstance(version, int) or version is None:
        return library.DeltaTable(uri, version=version, storage_options=options or None)
    table = library.DeltaTable(uri, storage_options=options or None)
    table.load_as_version(version)
    return table


def _check_features(protocol: Any, display_name: str) -> None:
    unknown = sorted(set(protocol.reader_features or ()) - _FEATURES)
    if unknown:
        raise SourceError(
            f"the Delta table {display_name} requires reader features that windrow does not support: "
            f"{', '.join(unknown)}; write a copy without them"
        )


def _find_columns(table: Any) -> TableColumns:
    """The table's columns; with column mapping, matched by physical name or field id."""
    metadata = table.metadata()
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    schema = pa.schema(table.schema().to_arrow())
    partitions = tuple(metadata.partition_columns)
    if any(pt.is_binary(schema.field(name).type) for name in partitions):
        raise SourceError(
            "partition columns of binary values are not supported: write the table with text instead"
        )
    if mode == "none":
        return TableColumns(schema, partitions)
    fields = {column.name: column.metadata for column in table.schema().fields}
    if mode == "id":
        numbered = [
            column.with_metadata({b"PARQUET:field_id": str(fields[column.name][_MAPPED_ID]).encode()})
            for column in schema
        ]
        schema = pa.schema(numbered)
    names = {name: (str(known[_MAPPED_NAME]),) for name, known in fields.items()}
    return TableColumns(schema, partitions, names, by_field_id=mode == "id")


def _locate(uri: str, options: dict[str, str], snapshot: str, secrets: tuple[str, ...]) -> TableFiles:
    if uri.startswith("file://"):
        return TableFiles(forward_slashes(unquote(urlsplit(uri).path)).rstrip("/") or "/", snapshot=snapshot)
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    filesystem = PyFileSystem(DeltaStorageHandler(uri, options or None))
    return TableFiles(
        "", filesystem, display_root=without_user(uri).rstrip("/"), snapshot=snapshot, secrets=secrets
    )


def _list_files(
    table: Any, columns: TableColumns, filter: pc.Expression | None
) -> tuple[list[LoggedFile], int]:
    """List the files of a version that pass pruning, and count the pruned ones."""
    actions = pa.table(table.get_add_actions(flatten=False))
    paths, constants = _paths(actions), _constants(actions, columns)
    deleted = _deleted(table, paths)
    kept = prune_files(filter, columns, len(paths), lambda _: _statistics(actions, constants, columns))
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


def _statistics(
    actions: pa.Table, constants: Sequence[Mapping[str, Any]], columns: TableColumns
) -> list[dict[str, ColumnStatistics]]:
    """(files,) column statistics by table column; the log names columns as the files do."""
    found = [
        {name: ColumnStatistics(value, value, int(value is None), 1) for name, value in values.items()}
        for values in constants
    ]
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
