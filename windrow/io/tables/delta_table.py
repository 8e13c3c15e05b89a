"""Open Delta Lake tables: deltalake reads the log, windrow reads the data files."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import PlanError, SourceError, WindrowError
from windrow.core.optional_dependencies import require
from windrow.core.tracebacks import trims_traceback
from windrow.io.storage.credentials import (
    check_options,
    find_secrets,
    redact,
    safe_cause,
    source_error,
    without_user,
)
from windrow.io.tables.column_mapping import TableColumns
from windrow.io.tables.data_files import TableFiles, plain_error
from windrow.io.tables.delta_log import list_files
from windrow.io.tables.table_source import Snapshot, TableSource, open_snapshot

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["DeltaVersion", "open_delta"]

DeltaVersion = int | str | datetime.datetime

_EXTRA, _CALLER = "delta", "read_delta()"
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
    target_block_bytes: int,
) -> TableSource:
    """Resolve a table to the files of one version.

    Raises
    ------
    SourceError
        If the table or version does not exist, or a file of it is missing.
    PlanError
        If the library is not installed, or an argument is invalid.
    """
    library = require("deltalake", _EXTRA, _CALLER)
    options = check_options(storage_options or getattr(table, "_storage_options", None))
    secrets = find_secrets(options)
    uri = table.table_uri if isinstance(table, library.DeltaTable) else _check_uri(table)
    display_name = redact(uri.removeprefix("file://"), secrets)
    with _mapped_errors(display_name, secrets):
        if version is not None or not isinstance(table, library.DeltaTable):
            table = _load(library, uri, version, options)
        known = table.version()
        label = f"version {known}"
        _check_features(table.protocol(), display_name)
        found = _find_columns(table)
        files = _locate(table.table_uri, options, f"{label} of the Delta table {display_name}", secrets)
        logged, others = list_files(table, found, filter)
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
    if isinstance(version, datetime.datetime) and version.tzinfo is None:
        raise PlanError(f"version={version!r} has no time zone: give it one (tzinfo=datetime.timezone.utc)")
    if isinstance(version, int) or version is None:
        return library.DeltaTable(uri, version=version, storage_options=options or None)
    table = library.DeltaTable(uri, storage_options=options or None)
    table.load_as_version(version)
    return table


@contextmanager
def _mapped_errors(display_name: str, secrets: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except WindrowError:
        raise
    except Exception as error:
        fix = "check the path, the version (vacuuming removes old ones), the credentials and storage_options="
        what = f"the Delta table {display_name} cannot be opened"
        raise source_error(what, plain_error(error), fix, tuple(secrets)) from safe_cause(error, secrets)


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
        return TableFiles(unquote(urlsplit(uri).path).rstrip("/") or "/", snapshot=snapshot)
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    filesystem = PyFileSystem(DeltaStorageHandler(uri, options or None))
    return TableFiles(
        "", filesystem, display_root=without_user(uri).rstrip("/"), snapshot=snapshot, secrets=secrets
    )
