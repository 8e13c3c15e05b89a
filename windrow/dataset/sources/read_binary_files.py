"""read_binary_files: files of any kind as a Dataset of their bytes, one row per file."""

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
    """Return a dataset of the bytes of files, one row per file; lists the files and reads none.

    The only column is ``bytes``. A block holds many small files. If the listing includes file sizes
    and versions (as for S3, GCS and local disks), no file needs a request before it is read; the
    dataset's fingerprint then covers only paths and sizes.

    Parameters
    ----------
    paths
        A file, a directory (all visible files below it), a glob, or a list of these: local
        paths or URLs that fsspec supports; see `read_parquet`.
    columns
        The columns to read, in this order; None: all. Without ``bytes``, no file is read.
    filter
        A pyarrow expression; only rows for which it is true are delivered. A filter on paths and
        partitions only is evaluated before anything is read.
    filesystem, storage_options, partitioning, manifest, retry_seconds
        As in `read_parquet`.
    include_paths
        Whether to add a column ``path`` with the file of each row.
    directory_column
        Name of a column to add that holds the name of each file's directory. None: no column is added.
    target_block_bytes
        Maximum bytes of a block, which holds several files.

    Raises
    ------
    SourceError
        If a path matches nothing.
    PlanError
        If an argument is invalid, or ``columns`` or ``filter`` name a column that does not exist.

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
