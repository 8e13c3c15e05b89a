"""read_binary_files: files of any kind as a Dataset of their bytes, one row per file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.whole_file_format import BinaryFormat

if TYPE_CHECKING:
    import pyarrow.compute as pc


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
    target_block_bytes: int | str = "auto",
    retry_seconds: float = 120,
) -> Dataset:
    """Return a dataset of the bytes of files, one row per file; lists the files and reads none.

    The only column is ``bytes``. A block holds many small files. If the listing includes file sizes
    and versions (as for S3, GCS and local disks), no file needs a request before it is read; the
    dataset's fingerprint then covers only paths and sizes.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. Without the column ``bytes``, no file is read. A filter on paths and
        partitions only is evaluated before anything is read.
    directory_column
        Name of a column to add that holds the name of each file's directory. None: no column is added.
    target_block_bytes
        Maximum bytes of a block, which holds several files; ``"auto"`` as in `read_parquet`.

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
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, directory_column)
    return read_files(BinaryFormat(), location, selection, target_block_bytes)
