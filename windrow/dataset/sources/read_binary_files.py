"""read_binary_files: files of any kind, each as its bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import read_files
from windrow.io.formats.binary_format import BinaryFormat

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["read_binary_files"]


def read_binary_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    directory_column: str | None = None,
    manifest: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "64MiB",
    retry_seconds: float = 120,
) -> Dataset:
    """Describe files as a dataset of their bytes, one row a file: lists them, and reads nothing.

    The one column is ``bytes``. Many small files make a block. Where a store's listing tells
    what a look at a file tells (as of S3, GCS and local disks), no file costs a request before
    it is read; the fingerprint then is one of paths and sizes alone.

    Parameters
    ----------
    paths
        A file, a directory (all visible files below it), a glob, or a list of these, on
        local disk or as a URL that fsspec knows; see `read_parquet`.
    columns
        The columns to read, in this order; None: all. Without ``bytes`` no file is read.
    filter
        A pyarrow expression: only rows for which it is true are delivered. One of paths and
        partitions alone is decided before anything is read.
    filesystem, storage_options, partitioning, manifest, retry_seconds
        As for `read_parquet`.
    include_paths
        Whether to add a column ``path``: the file that a row is.
    directory_column
        A column to add: the name of the directory that a file lies in. None: none.
    target_block_bytes
        Files are read together up to this many bytes.

    Raises
    ------
    SourceError
        If a path matches nothing.
    PlanError
        If an argument is wrong, or ``columns`` or ``filter`` name a column that is not there.

    Examples
    --------
    >>> from pathlib import Path
    >>> import windrow
    >>> for name in ("a", "b"):
    ...     _ = Path(f"{name}.blob").write_bytes(name.encode())
    >>> windrow.read_binary_files("*.blob").take()
    [{'bytes': b'a'}, {'bytes': b'b'}]
    """
    return read_files(
        paths,
        BinaryFormat(),
        columns=columns,
        filter=filter,
        filesystem=filesystem,
        storage_options=storage_options,
        partitioning=partitioning,
        include_paths=include_paths,
        directory_column=directory_column,
        manifest=manifest,
        target_block_bytes=target_block_bytes,
        retry_seconds=retry_seconds,
    )
