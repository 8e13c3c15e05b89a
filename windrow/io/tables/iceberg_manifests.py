"""List the files of an Iceberg snapshot from its manifests: locations, constants, deletes, pruning."""

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
from windrow.io.tables.file_pruning import ColumnStatistics, candidate_files, supports_pruning
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
    """List the files of a scan that pass pruning; reads their delete files.

    Raises
    ------
    SourceError
        If a file is not Parquet.
    PlanError
        If the filter does not fit the columns.
    """
    kept = _prune(schema, columns, tasks, filter)
    deleted = read_positions(table.io, [tasks[place] for place in kept])
    return [
        LoggedFile(
            paths[place],
            _identity_partitions(table, schema, tasks[place].file),
            deleted.get(tasks[place].file.file_path),
        )
        for place in kept
    ]


def locate_files(
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
        return None, [urlsplit(uri).path for uri in uris]
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
    spec, names = (
        table.specs()[file.spec_id],
        {column.field_id: column.name for column in schema.fields},
    )
    return {
        names[part.source_id]: file.partition[place]
        for place, part in enumerate(spec.fields)
        if isinstance(part.transform, IdentityTransform) and part.source_id in names
    }


def _prune(
    schema: Any, columns: TableColumns, tasks: Sequence[Any], filter: pc.Expression | None
) -> list[int]:
    """The indices of files that can hold rows matching the filter."""
    if filter is None:
        return list(range(len(tasks)))
    plain = plain_schema(columns.schema)
    check_filter(filter, plain)
    numbered = [(column.name, column.field_id, plain.field(column.name).type) for column in schema.fields]
    known = [
        {name: _statistics(task.file, number, kind) for name, number, kind in numbered} for task in tasks
    ]
    return np.flatnonzero(candidate_files(filter, plain, known)).tolist()


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
