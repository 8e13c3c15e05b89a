"""read_hdf5: datasets of HDF5 files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.array_columns import parse_columns
from windrow.io.formats.hdf5_files import load_h5py
from windrow.io.formats.hdf5_format import Hdf5Format

if TYPE_CHECKING:
    import pyarrow.compute as pc


def read_hdf5(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "auto",
    retry_seconds: float = 120,
) -> Dataset:
    """Return a dataset of HDF5 files; reads their metadata, and a few values of variable length.

    The first dimension of a dataset in the file counts rows, and all that are read must have the same
    length. Datasets of more dimensions are delivered as (rows, ...) arrays and tensors. Without a dict of
    ``columns``, every dataset is a column whose name is its path, such as ``"group/x"``. Of a dataset of
    compound values, every field is a column, such as ``"group/table/x"``.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    columns
        The columns to read, in this order; None: all. A dict gives each column the path of its dataset in the file:
        ``{"image": "/train/images"}``. Only these datasets must have the same length then. A path can end with a
        field of a dataset of compound values; the path of the dataset itself gives a column of structs.
    filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. Chunks of other columns than the selected ones, and those of the filter, are not read.
    target_block_bytes
        Maximum bytes of a block, which is made of row groups of about 8 MiB, from several files if they are
        small; ``"auto"`` as in `read_parquet`. A row group has whole chunks of all datasets, so that none is
        decompressed twice, unless that takes more than 64 MiB: the dataset with the largest rows decides then.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read, is not an HDF5 file or holds an unsupported type; if a
        dataset is missing, or types or shapes of rows differ between files, or lengths in one of them.
    PlanError
        If h5py is not installed, an argument is invalid, or ``columns`` or ``filter`` name a column that does not
        exist.

    Notes
    -----
    Integers, floats, booleans, UTF-8 text (string), ASCII text (bytes, as h5py returns it), lists of numbers of
    several lengths, and times that h5py stores as ``datetime64`` are supported. Enumerations are integers. Complex
    numbers and references raise an error. Rows that were never written have the dataset's fill value.

    The HDF5 library decodes one block at a time in a process, so more threads do not make it faster. The
    values of external links, external storage, and virtual datasets of other files are not read, since a change of
    those files would not be noticed.

    Examples
    --------
    >>> import h5py, numpy as np, windrow
    >>> with h5py.File("scenes.h5", "w") as file:
    ...     file["train/images"] = np.zeros((100, 8, 8), np.uint8)
    ...     file["train/labels"] = np.arange(100)
    ...     file["test/labels"] = np.arange(20)
    >>> columns = {"image": "/train/images", "label": "/train/labels"}
    >>> ds = windrow.read_hdf5("scenes.h5", columns=columns)
    >>> ds.count(), ds.take_batch(32)["image"].shape
    (100, (32, 8, 8))
    """
    load_h5py()
    paths_of = parse_columns(columns)
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(None if columns is None else list(columns), filter, partitioning, include_paths)
    return read_files(Hdf5Format(paths_of), location, selection, target_block_bytes)
