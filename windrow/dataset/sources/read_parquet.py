"""read_parquet: Parquet files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.byte_sizes import parse_bytes
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import open_parquet
from windrow.io.storage.retries import Retries

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["read_parquet"]


def read_parquet(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "64MiB",
    retry_seconds: float = 120,
) -> Dataset:
    """Describe Parquet files as a dataset: lists them and reads their footers, nothing else.

    Parameters
    ----------
    paths
        A file, a directory (all visible files below it, whatever their names, so that
        one that is no Parquet is an error), a glob, or a list of these, on
        local disk or as a URL that fsspec knows (``s3://``, ``memory://`` ...).
        Directories and globs are listed sorted by name; a list keeps its order.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression: only rows for which it is true are delivered. Files and row
        groups that cannot hold any are not read.
    filesystem
        An fsspec or ``pyarrow.fs`` filesystem that ``paths`` are meant for.
    storage_options
        What fsspec needs to open the URLs. For S3 in the words of s3fs (``key``, ``secret``, ...)
        or of ``pyarrow.fs.S3FileSystem`` (``access_key``, ...), which chooses the client;
        ``endpoint_url`` and ``region`` for both.
    partitioning
        ``"hive"``: directories named ``key=value`` become columns; None: they do not.
    include_paths
        Whether to add a column ``path``, the last, of the file that each row is from.
    manifest
        What ``Dataset.save_manifest`` wrote: nothing is listed and no footer is read.
        ``paths`` then says where the files are, and None that they have not moved.
    target_block_bytes
        Adjacent row groups of a file are read together up to this many encoded bytes:
        an integer, or a string with a unit.
    retry_seconds
        How long a store is asked again for what it refuses for a moment (time-outs, 5xx,
        throttling, broken connections, too few bytes), beside what its client tries by
        itself; listing, for 30 seconds at most. 0: not at all. A local disk never is.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or is no Parquet, or schemas
        differ.
    PlanError
        If an argument is wrong, or ``columns`` or ``filter`` name a column that is not
        there; names the nearest ones.

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
    source = open_parquet(
        paths,
        columns=columns,
        filter=filter,
        filesystem=filesystem,
        storage_options=storage_options,
        partitioning=partitioning,
        include_paths=include_paths,
        manifest=manifest,
        target_block_bytes=parse_bytes(target_block_bytes, "target_block_bytes"),
        retries=Retries(seconds=retry_seconds),
    )
    return Dataset(LogicalPlan(source))
