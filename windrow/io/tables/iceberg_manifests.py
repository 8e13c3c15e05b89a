"""List the files of an Iceberg snapshot from its manifests: locations, constants, deletes, pruning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.io.storage.credentials import without_user
from windrow.io.tables.column_mapping import TableColumns
from windrow.io.tables.data_files import LoggedFile, TableFiles
from windrow.io.tables.file_pruning import ColumnStatistics, prune_files, supports_pruning

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["list_files", "locate_files", "read_positions"]

Ints = NDArray[np.int64]


def list_files(
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
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    found: dict[str, list[Ints]] = {}
    for vector in deletion_vectors_from_puffin_file(PuffinFile(content)):
        positions: Sequence[int] = vector.to_vector().to_pylist()
        found.setdefault(vector.referenced_data_file, []).append(np.array(positions, np.int64))
    return found
