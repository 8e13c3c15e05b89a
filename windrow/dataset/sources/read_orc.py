"""read_orc: ORC files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.orc_format import OrcFormat, load_orc

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_orc(
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
    """Return a dataset of ORC files; reads only their footers.

    Row groups are stripes. A stripe is decoded as a whole, so that stripes of hundreds of MiB need as much memory
    for each worker: ``explain()`` shows how much. From object storage, only the selected columns are read.
    Timestamps are nanoseconds: those with a local time zone in UTC, others without a time zone.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`; a filter drops rows once they are decoded.
    schema
        The columns to read and their types, in this order, as a ``pyarrow.Schema``; None: all columns
        that files have, in types that hold the values of all files. Casts are checked as in `read_parquet`.
        A column that some files lack is null there; one that no file has is an error.
    target_block_bytes
        Maximum bytes of a block, which is made of adjacent stripes of a file; ``"auto"`` as in `read_parquet`.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or is not ORC, or no type holds a column's
        values in all files.
    PlanError
        If an argument is invalid, ``columns`` or ``filter`` name a column that does not exist, or pyarrow was
        built without ORC.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.orc as orc, windrow
    >>> orc.write_table(pa.table({"fare": [5.0, -1.0], "city": ["Bern", None]}), "trips.orc")
    >>> windrow.read_orc("trips.orc").take()
    [{'fare': 5.0, 'city': 'Bern'}, {'fare': -1.0, 'city': None}]
    """
    load_orc()
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, schema=schema)
    return read_files(OrcFormat(), location, selection, target_block_bytes)
