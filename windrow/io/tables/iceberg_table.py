"""Open Iceberg tables: pyiceberg reads metadata and manifests, windrow reads the data files."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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

Ints = NDArray[np.int64]
IcebergVersion = int | str | datetime.datetime
_FIX = "check the table's name or path, catalog=, snapshot_id=, the credentials and storage_options="
_FIXES = {
    "equality deletes": "have the engine that wrote them compact the table (rewrite its data files), and read it then"
}


def _list_files(
    table: Any,
    schema: Any,
    columns: TableColumns,
    tasks: Sequence[Any],
    paths: Sequence[str],
    filter: pc.Expression | None,
) -> list[LoggedFile]:
    """List the files of a scan that pass pruning; reads their delete files."""

    def find_statistics(plain: pa.Schema) -> list[dict[str, ColumnStatistics]]:
        numbered = [(field.name, field.field_id, plain.field(field.name).type) for field in schema.fields]
        return [
            {name: _statistics(task.file, number, kind) for name, number, kind in numbered} for task in tasks
        ]

    kept = prune_files(filter, columns, len(tasks), find_statistics)
    deleted = read_positions(table.io, [tasks[place] for place in kept])
    return [
        LoggedFile(
            paths[place],
            _identity_partitions(table, schema, tasks[place].file),
            deleted.get(tasks[place].file.file_path),
        )
        for place in kept
    ]


def _locate_files(
    table: Any, tasks: Sequence[Any], snapshot: str, secrets: tuple[str, ...]
) -> tuple[TableFiles, list[str]]:
    """Find the common root of the files, and their paths relative to it."""
    uris = [table.location().rstrip("/"), *(task.file.file_path for task in tasks)]
    stores = {(urlsplit(uri).scheme or "file", urlsplit(uri).netloc) for uri in uris}
    if len(stores) > 1:
        named = ", ".join(sorted(f"{scheme}://{without_user(place)}" for scheme, place in stores))
        raise SourceError(f"the files of {snapshot} are in several stores ({named}): copy them into one")
    ((scheme, place),) = stores
    filesystem, (base, *paths) = _connect(table.io, scheme, place, uris)
    within = all(path.startswith(f"{base}/") for path in paths)
    # files can be added to a table from other locations
    root = base if within else "" if filesystem is not None else "/"
    display_root = without_user(uris[0]) if within and filesystem is not None else ""
    files = TableFiles(root, filesystem, display_root=display_root, snapshot=snapshot, secrets=secrets)
    return files, [path[len(base) + 1 :] if within else path.lstrip("/") for path in paths]


def _connect(io: Any, scheme: str, place: str, uris: Sequence[str]) -> tuple[Any, list[str]]:
    """The filesystem that the library uses (None for local disk), and the paths in it."""
    if scheme == "file":
        return None, [forward_slashes(urlsplit(uri).path) for uri in uris]
    if hasattr(io, "fs_by_scheme"):
        return io.fs_by_scheme(scheme, place), [io.parse_location(uri, io.properties)[2] for uri in uris]
    filesystem = io.get_fs(scheme, place)
    return filesystem, [str(filesystem._strip_protocol(uri)) for uri in uris]


def _identity_partitions(table: Any, schema: Any, file: Any) -> dict[str, Any]:
    """The columns by which a file is identity-partitioned, and their values."""
    from pyiceberg.transforms import IdentityTransform

    if str(getattr(file.file_format, "value", file.file_format)).upper() != "PARQUET":
        raise SourceError(
            f"{without_user(file.file_path)} is {file.file_format}, and only Parquet is supported: rewrite it"
        )
    spec = table.specs()[file.spec_id]
    names = {column.field_id: column.name for column in schema.fields}
    return {
        names[part.source_id]: file.partition[place]
        for place, part in enumerate(spec.fields)
        if isinstance(part.transform, IdentityTransform) and part.source_id in names
    }


def _statistics(file: Any, number: int, kind: pa.DataType) -> ColumnStatistics:
    """The statistics of a column from a file's manifest entry."""
    nulls, rows = (
        None if counts is None else counts.get(number)
        for counts in (file.null_value_counts, file.value_counts)
    )
    if not supports_pruning(kind):
        return ColumnStatistics(None, None, nulls, rows)
    minimum, maximum = (_decode(values, number, kind) for values in (file.lower_bounds, file.upper_bounds))
    return ColumnStatistics(minimum, maximum, nulls, rows)


def _decode(values: Mapping[int, bytes] | None, number: int, kind: pa.DataType) -> Any:
    raw = None if values is None else values.get(number)
    if raw is None:
        return None
    # bounds can be of a narrower type, from before a type promotion
    return raw.decode() if pt.is_string(kind) else int.from_bytes(raw, "little", signed=True)


def read_positions(io: Any, tasks: Iterable[Any]) -> dict[str, Ints]:
    """The positions of deleted rows by data file, ascending; each delete file is read once."""
    known: dict[str, dict[str, list[Ints]]] = {}
    deleted = {}
    for task in tasks:
        for delete in task.delete_files:
            if delete.file_path not in known:
                known[delete.file_path] = _read(io, delete)
        # a delete file that names a data file applies only if planning assigned it: the data file can be newer
        path = task.file.file_path
        found = [
            positions for delete in task.delete_files for positions in known[delete.file_path].get(path, ())
        ]
        if found:
            deleted[path] = np.unique(np.concatenate(found))
    return deleted


def _read(io: Any, delete: Any) -> dict[str, list[Ints]]:
    form = str(getattr(delete.file_format, "value", delete.file_format)).upper()
    with io.new_input(delete.file_path).open() as file:
        if form == "PARQUET":
            return _read_parquet(file)
        if form == "PUFFIN":
            return _read_puffin(bytes(file.read()))
    raise SourceError(
        f"the delete file {without_user(delete.file_path)} is {form}, which is not supported: compact the table"
    )


def _read_parquet(file: Any) -> dict[str, list[Ints]]:
    import pyarrow.parquet as pq

    table = pq.read_table(file, columns=["file_path", "pos"])
    paths = table["file_path"].combine_chunks().dictionary_encode()
    codes, positions = paths.indices.to_numpy(), table["pos"].to_numpy()
    return {path: [positions[codes == code]] for code, path in enumerate(paths.dictionary.to_pylist())}


def _read_puffin(content: bytes) -> dict[str, list[Ints]]:
    try:
        from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
        from pyiceberg.table.puffin import PuffinFile
    except ImportError as error:
        raise NotImplementedError("deletion vectors are not supported before pyiceberg 0.12") from error

    found: dict[str, list[Ints]] = {}
    for vector in deletion_vectors_from_puffin_file(PuffinFile(content)):
        positions: Sequence[int] = vector.to_vector().to_pylist()
        found.setdefault(vector.referenced_data_file, []).append(np.array(positions, np.int64))
    return found


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
        files, paths = _locate_files(table, tasks, f"{label} of the Iceberg table {display_name}", secrets)
        logged = _list_files(table, schema, found, tasks, paths, filter)
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
