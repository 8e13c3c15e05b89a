"""read_parquet: Parquet files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.parquet.block_reader import ParquetFormat

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_parquet(
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
    """Return a dataset of Parquet files; lists the files and reads only their footers.

    Parameters
    ----------
    paths
        A file, a directory (all visible files below it, whatever their names; a file that is not
        Parquet raises an error), a glob, or a list of these: local paths or URLs that fsspec
        supports (``s3://``, ``hf://``, ``memory://`` ...). Directories and globs are sorted by name; a list
        keeps its order. Directories and globs leave out names that begin with ``.`` or ``_``, of files and of
        directories below, unless the glob has that character itself, as ``_*.parquet``; a file that is named
        itself is read whatever its name. The name of a file or folder that exists is never taken for a glob.
    columns
        The columns to read, in this order; None: all. ``"s.a"`` reads the field ``a`` of the struct
        ``s`` alone, which is then a struct of the named fields, and ``"l.list.element.a"`` that of
        the structs in a list; a column of that name comes first. Files need to agree on these
        columns only.
    schema
        The columns to read and their types, in this order, as a ``pyarrow.Schema``; None: all columns
        that files have, in types that hold the values of all files. Casts never change a value: what a
        type cannot hold is an error. Timestamps without a time zone are taken as UTC where the schema
        states a zone, and directories' values are read as the schema states.
        A column that some files lack is null there; one that no file has is an error.
    filter
        A pyarrow expression; only rows for which it is true are delivered. Files and row groups
        without matching rows, according to partitions and statistics, are not read.
    filesystem
        An fsspec or ``pyarrow.fs`` filesystem for ``paths``.
    storage_options
        fsspec options to open the URLs. For S3, either those of s3fs (``key``, ``secret``, ...) or
        of ``pyarrow.fs.S3FileSystem`` (``access_key``, ...); they select the client. Both accept
        ``endpoint_url`` and ``region``.
    partitioning
        ``"hive"``: directories named ``key=value`` become columns; None: they do not.
    include_paths
        Whether to add a last column ``path`` with the file that each row comes from.
    manifest
        A file written by ``Dataset.save_manifest``: with it, nothing is listed and no footer is
        read. ``paths`` then gives the location of the files; None: they have not moved.
    target_block_bytes
        Encoded bytes up to which adjacent row groups, also of adjacent files, are joined to a block: an
        integer, or a string with a unit. ``"auto"`` follows from the footers alone: up to 256 row groups
        stay blocks of their own; more are joined to about 256 blocks, of 1 to 64 MiB. ``explain()`` shows it.
        A row group of more than four times this size is cut into blocks of adjacent rows, unless it has less
        than 64 MiB; one of more than 128 MiB always is, unless this size is larger.
    retry_seconds
        Time limit for retrying transient storage errors (time-outs, 5xx, throttling, broken
        connections, short reads), including the storage client's own retries; at most 30 seconds
        for listing. 0: no retries. Reads from local disks are never retried.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or is not Parquet, or no type holds a column's
        values in all files.
    PlanError
        If an argument is invalid, or ``columns`` or ``filter`` name a column that does not
        exist; the message suggests similar names.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"fare": [5.0, -1.0], "tip": [1.0, 0.0]}), "trips.parquet")
    >>> ds = windrow.read_parquet("trips.parquet", columns=["fare"])
    >>> ds.take()
    [{'fare': 5.0}, {'fare': -1.0}]
    >>> import pyarrow.compute as pc
    >>> windrow.read_parquet("trips.parquet", filter=pc.field("fare") > 0).count()
    1
    """
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, schema=schema)
    return read_files(ParquetFormat(), location, selection, target_block_bytes)
