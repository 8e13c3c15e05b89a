"""Open Iceberg tables: pyiceberg reads metadata and manifests, windrow reads the data files."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.core.tracebacks import trims_traceback
from windrow.io.storage.credentials import check_options, find_secrets, redact
from windrow.io.tables.column_mapping import TableColumns
from windrow.io.tables.iceberg_manifests import list_files, locate_files
from windrow.io.tables.library_errors import check_time_zone, mapped_errors
from windrow.io.tables.snapshot_source import Snapshot, TableSource, open_snapshot

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["IcebergVersion", "open_iceberg"]

IcebergVersion = int | str | datetime.datetime

_FIX = "check the table's name or path, catalog=, snapshot_id=, the credentials and storage_options="
_FIXES = {
    "equality deletes": "have the engine that wrote them compact the table (rewrite its data files), and read it then"
}


@trims_traceback
def open_iceberg(
    table: Any,
    *,
    catalog: Any,
    columns: Sequence[str] | None,
    filter: pc.Expression | None,
    snapshot_id: IcebergVersion | None,
    storage_options: Mapping[str, str] | None,
    target_block_bytes: int | None,
) -> TableSource:
    """Resolve a table to the files of one snapshot."""
    require("pyiceberg.io.pyarrow", "iceberg", "read_iceberg()")
    options = check_options(storage_options)
    secrets = _secrets(options, catalog)
    display_name = redact(str(table), secrets) if isinstance(table, (str, os.PathLike)) else "given"
    with mapped_errors(f"the Iceberg table {display_name} cannot be opened", secrets, _FIX, _FIXES):
        table = _load(table, catalog, options)
    secrets = (*secrets, *find_secrets(dict(table.io.properties)))
    # the name of a table that was opened by metadata path is that path
    display_name = redact(".".join(table.name()).removeprefix("static-table."), secrets)
    with mapped_errors(f"the Iceberg table {display_name} cannot be opened", secrets, _FIX, _FIXES):
        number, schema = _find_snapshot(table, snapshot_id)
        found = _find_columns(table, schema)
        tasks = [] if number is None else list(table.scan(snapshot_id=number).plan_files())
        label = f"snapshot {number}" if number is not None else "no snapshot yet"
        files, paths = locate_files(table, tasks, f"{label} of the Iceberg table {display_name}", secrets)
        logged = list_files(table, schema, found, tasks, paths, filter)
        snapshot = Snapshot("Iceberg", str(table.metadata.table_uuid), str(number), label)
    return open_snapshot(
        files,
        snapshot,
        logged,
        found,
        select=columns,
        filter=filter,
        target_block_bytes=target_block_bytes,
        pruned_files=len(tasks) - len(logged),
    )


def _secrets(options: Mapping[str, str] | None, catalog: Any) -> tuple[str, ...]:
    known = catalog if isinstance(catalog, Mapping) else getattr(catalog, "properties", {})
    return (*find_secrets(dict(options or {})), *find_secrets(dict(known)))


def _load(table: Any, catalog: Any, options: dict[str, str]) -> Any:
    """Load the table that the user's argument names."""
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.table import StaticTable, Table

    if isinstance(table, Table):
        return table
    if isinstance(table, os.PathLike):
        table = os.fspath(table)
    if not isinstance(table, (str, tuple)) or not table:
        raise PlanError(
            f"table={table!r}: give a name like 'db.trips' with catalog=, the path of a metadata file, or a Table"
        )
    if isinstance(catalog, Catalog):
        return catalog.load_table(table)
    if catalog is not None:
        known = {**catalog, **options} if isinstance(catalog, Mapping) else options
        name = catalog if isinstance(catalog, str) else str(known.pop("name", "default"))
        opened = load_catalog(name, **known)
        try:
            return opened.load_table(table)
        finally:
            opened.close()
    path = "" if isinstance(table, tuple) else table
    if not path.endswith(".metadata.json") and "/" not in path:
        raise PlanError(f"table={table!r} is a name: give its catalog with catalog=")
    return StaticTable.from_metadata(path if "://" in path else os.path.abspath(path), options)


def _find_snapshot(table: Any, version: IcebergVersion | None) -> tuple[int | None, Any]:
    """The snapshot's id (None for a table without snapshots), and its schema."""
    if version is None:
        snapshot = table.current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id, table.schema()
    if isinstance(version, datetime.datetime):
        check_time_zone("snapshot_id", version)
        snapshot = table.snapshot_as_of_timestamp(int(version.timestamp() * 1000))
    elif isinstance(version, str):
        snapshot = table.snapshot_by_name(version)
    elif isinstance(version, int) and not isinstance(version, bool):
        snapshot = table.snapshot_by_id(version)
    else:
        raise PlanError(f"snapshot_id={version!r}: give a number, the name of a tag or branch, or a time")
    if snapshot is None:
        known = ", ".join(str(one.snapshot_id) for one in table.snapshots()[-3:])
        raise SourceError(
            f"the Iceberg table has no snapshot {version} (its last: {known or 'none'}); "
            "it may have expired: give one that exists"
        )
    return snapshot.snapshot_id, table.schemas().get(snapshot.schema_id, table.schema())


def _find_columns(table: Any, schema: Any) -> TableColumns:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    mapping = table.name_mapping()
    aliases = {} if mapping is None else {known.field_id: tuple(known.names) for known in mapping.root}
    return TableColumns(
        schema_to_pyarrow(schema),
        names={column.name: aliases.get(column.field_id, ()) for column in schema.fields},
        by_field_id=True,
        by_name=mapping is not None,
        defaults={
            column.name: column.initial_default
            for column in schema.fields
            if column.initial_default is not None
        },
    )
