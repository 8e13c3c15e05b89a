"""read_numpy: .npy and .npz files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.numpy_format import NumpyFormat

if TYPE_CHECKING:
    import pyarrow.compute as pc


def read_numpy(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    column: str = "data",
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "auto",
    retry_seconds: float = 120,
) -> Dataset:
    """Return a dataset of NumPy files; lists the files and reads only their headers.

    The first dimension of an array counts rows. Arrays of more dimensions are delivered as
    (rows, ...) arrays and tensors. An ``.npz`` file has one column per array, a structured array
    one per field. Supported types: booleans, integers, floats, ``datetime64`` and ``timedelta64``
    in s, ms, us and ns, ``datetime64[D]``, text (``U``) and bytes (``S``); NaT is null. Object
    arrays raise an error, because they are pickles.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    column
        Name of the column of ``.npy`` files.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. In uncompressed ``.npz`` files, only the arrays of these columns are read.
    target_block_bytes
        Maximum bytes of a block, which is made of row groups of about 8 MiB, from several files if
        they are small; ``"auto"`` as in `read_parquet`. A compressed ``.npz`` file is one row group.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read, is not a NumPy file or holds an
        unsupported type; if types or shapes of rows differ between files, or if the arrays of an
        ``.npz`` differ in length.
    PlanError
        If an argument is invalid, or ``columns`` or ``filter`` name a column that does not exist.

    Examples
    --------
    >>> import numpy as np, windrow
    >>> np.save("images.npy", np.zeros((100, 28, 28), np.uint8))
    >>> ds = windrow.read_numpy("images.npy", column="image")
    >>> ds.take_batch(32)["image"].shape
    (32, 28, 28)
    >>> np.savez("pairs.npz", x=np.arange(3), y=np.ones((3, 2)))
    >>> windrow.read_numpy("pairs.npz").take(1)
    [{'x': 0, 'y': [1.0, 1.0]}]
    """
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths)
    return read_files(NumpyFormat(column), location, selection, target_block_bytes)
