"""read_arrow: Arrow IPC files, Feather and IPC streams as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.arrow_format import ArrowFormat

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_arrow(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "auto",
    retry_seconds: float = 120,
) -> Dataset:
    """Return a dataset of Arrow IPC files (including Feather V2) and streams; reads only their headers.

    Row groups are record batches. Local files are memory-mapped: uncompressed data is not copied
    before the shuffle, so do not write to the files while they are read (a new file under the same
    name is detected). From object storage, only the selected columns of files are read. Delta
    dictionaries and, in streams, replacement dictionaries are supported.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`.
    schema
        The columns to read and their types, in this order, as a ``pyarrow.Schema``; None: all columns
        that files have, in types that hold the values of all files. Casts are checked as in `read_parquet`.
        A column that some files lack is null there; one that no file has is an error.
    target_block_bytes
        Maximum bytes of a block, which is made of adjacent record batches of a file; ``"auto"`` as in
        `read_parquet`.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or is not Arrow IPC, or no type holds a column's
        values in all files.
    PlanError
        If an argument is invalid, or ``columns`` or ``filter`` name a column that does not exist.

    Examples
    --------
    >>> import pyarrow as pa, windrow
    >>> table = pa.table({"fare": [5.0, -1.0], "city": ["Bern", None]})
    >>> with pa.ipc.new_file("trips.arrow", table.schema) as writer:
    ...     writer.write_table(table)
    >>> windrow.read_arrow("trips.arrow").take()
    [{'fare': 5.0, 'city': 'Bern'}, {'fare': -1.0, 'city': None}]
    """
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, schema=schema)
    return read_files(ArrowFormat(), location, selection, target_block_bytes)
