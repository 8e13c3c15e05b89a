"""What the manifests of an Iceberg table say of its files, as the library tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError
from windrow.io.catalog.filters import check_filter
from windrow.io.storage.credentials import without_user
from windrow.io.tables.column_mapping import TableColumns, plain_schema
from windrow.io.tables.data_files import TableFiles
from windrow.io.tables.file_pruning import Bounds, has_bounds, kept_files
from windrow.io.tables.iceberg_deletes import read_positions
from windrow.io.tables.logged_files import LoggedFile

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["list_files", "locate_files"]


def list_files(
    table: Any,
    schema: Any,
    columns: TableColumns,
    tasks: Sequence[Any],
    paths: Sequence[str],
    filter: pc.Expression | None,
) -> list[LoggedFile]:
    """The files of a scan that a filter may keep rows of; reads their delete files.

    Raises
    ------
    SourceError
        If a file is no Parquet.
    PlanError
        If the filter does not fit the columns.
    """
    kept = _kept(schema, columns, tasks, filter)
    deleted = read_positions(table.io, [tasks[place] for place in kept])
    return [
        LoggedFile(
            paths[place],
            _identities(table, schema, tasks[place].file),
            deleted.get(tasks[place].file.file_path),
        )
        for place in kept
    ]


def locate_files(
    table: Any, tasks: Sequence[Any], snapshot: str, secrets: tuple[str, ...]
) -> tuple[TableFiles, list[str]]:
    """Where the files are, and their paths below that."""
    uris = [table.location().rstrip("/"), *(task.file.file_path for task in tasks)]
    stores = {(urlsplit(uri).scheme or "file", urlsplit(uri).netloc) for uri in uris}
    if len(stores) > 1:
        named = ", ".join(sorted(f"{scheme}://{without_user(place)}" for scheme, place in stores))
        raise SourceError(f"the files of {snapshot} are in several stores ({named}): copy them into one")
    ((scheme, place),) = stores
    filesystem, (base, *paths) = _connect(table.io, scheme, place, uris)
    within = all(path.startswith(f"{base}/") for path in paths)
    # a table that has been given files from elsewhere
    root = base if within else "" if filesystem is not None else "/"
    shown = without_user(uris[0]) if within and filesystem is not None else ""
    files = TableFiles(root, filesystem, shown=shown, snapshot=snapshot, secrets=secrets)
    return files, [path[len(base) + 1 :] if within else path.lstrip("/") for path in paths]


def _connect(io: Any, scheme: str, place: str, uris: Sequence[str]) -> tuple[Any, list[str]]:
    """The filesystem that the library reads by, None for the local disk, and paths in it."""
    if scheme == "file":
        return None, [urlsplit(uri).path for uri in uris]
    if hasattr(io, "fs_by_scheme"):
        return io.fs_by_scheme(scheme, place), [io.parse_location(uri, io.properties)[2] for uri in uris]
    filesystem = io.get_fs(scheme, place)
    return filesystem, [str(filesystem._strip_protocol(uri)) for uri in uris]


def _identities(table: Any, schema: Any, file: Any) -> dict[str, Any]:
    """The columns by whose values files are partitioned, and their value in a file."""
    from pyiceberg.transforms import IdentityTransform

    if str(getattr(file.file_format, "value", file.file_format)).upper() != "PARQUET":
        raise SourceError(
            f"{without_user(file.file_path)} is {file.file_format}, only Parquet is read: rewrite it"
        )
    spec, names = (
        table.specs()[file.spec_id],
        {column.field_id: column.name for column in schema.fields},
    )
    return {
        names[part.source_id]: file.partition[place]
        for place, part in enumerate(spec.fields)
        if isinstance(part.transform, IdentityTransform) and part.source_id in names
    }


def _kept(
    schema: Any, columns: TableColumns, tasks: Sequence[Any], filter: pc.Expression | None
) -> list[int]:
    """The places of files that a filter may keep rows of."""
    if filter is None:
        return list(range(len(tasks)))
    plain = plain_schema(columns.schema)
    check_filter(filter, plain)
    numbered = [(column.name, column.field_id, plain.field(column.name).type) for column in schema.fields]
    known = [{name: _bounds(task.file, number, kind) for name, number, kind in numbered} for task in tasks]
    return np.flatnonzero(kept_files(filter, plain, known)).tolist()


def _bounds(file: Any, number: int, kind: pa.DataType) -> Bounds:
    """What a manifest says of a column in a file."""
    nulls, rows = (
        None if told is None else told.get(number) for told in (file.null_value_counts, file.value_counts)
    )
    if not has_bounds(kind):
        return Bounds(None, None, nulls, rows)
    low, high = (_decode(told, number, kind) for told in (file.lower_bounds, file.upper_bounds))
    return Bounds(low, high, nulls, rows)


def _decode(told: Mapping[int, bytes] | None, number: int, kind: pa.DataType) -> Any:
    raw = None if told is None else told.get(number)
    if raw is None:
        return None
    # values may be of a type that was narrower then
    return raw.decode() if pt.is_string(kind) else int.from_bytes(raw, "little", signed=True)
