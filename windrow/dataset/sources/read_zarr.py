"""read_zarr: arrays of Zarr stores as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.adapters.zarr_arrays import open_zarr
from windrow.io.formats.array_columns import parse_columns
from windrow.io.storage.retries import Retries


def read_zarr(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    dimension: str | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    target_block_bytes: int | str = "64MiB",
    retry_seconds: float = 120,
) -> Dataset:
    """Return a dataset of Zarr arrays, of version 2 or 3; reads their metadata and lists the stores.

    The first dimension of an array counts rows, and all that are read must have the same length. Arrays of more
    dimensions are delivered as (rows, ...) arrays and tensors. Without a dict of ``columns``, every array of
    the store's group, and of the groups in it, is a column whose name is its path; a store that is one array has the
    column ``"data"``. Of an array of structured values, every field is a column, such as ``"table/x"``.

    Parameters
    ----------
    paths
        A store, or a list of stores of the same columns, in this order: folders, zip files, or URLs of folders in
        object storage.
    columns
        The columns to read, in this order; None: all. A dict gives each column the path of its array in the store:
        ``{"image": "train/images"}``; ``"/"`` is the store itself. Only these arrays must have the same length then.
    dimension
        The name of the dimension that counts rows: only arrays whose first dimension has it are columns. Names are
        those of version 3, or those that xarray writes to version 2. None: arrays whose first dimensions have different
        names raise an error.
    filesystem, storage_options, retry_seconds
        As in `read_parquet`.
    target_block_bytes
        Stored, uncompressed bytes of a block, which is a range of rows: an integer, or a string with a unit. Blocks end
        where chunks and shards of all arrays end, so that none is read twice, unless that takes more than 64 MiB: the
        array with the largest rows decides then.

    Raises
    ------
    SourceError
        If there is no store, it cannot be read, or an array is missing or has an unsupported type; if arrays differ
        in length, or stores in their columns.
    PlanError
        If zarr is not installed, an argument is invalid, or ``columns`` or ``dimension`` name what does not exist.

    Notes
    -----
    Integers, floats, booleans, text, bytes, and times in s, ms, us, ns and D are supported; complex numbers raise an
    error. A chunk that is missing has the fill value, as in Zarr. Attributes such as ``scale_factor`` and
    the units of xarray's times are not applied.

    A checkpoint fits stores with the same metadata and the same chunks of the same sizes. While an epoch runs, a
    chunk that is overwritten goes unnoticed: do not write to a store that is being read.

    Examples
    --------
    >>> import zarr, numpy as np, windrow
    >>> group = zarr.create_group("scenes.zarr")
    >>> images = group.create_array("image", shape=(100, 8, 8), chunks=(10, 8, 8), dtype="u1")
    >>> labels = group.create_array("label", data=np.arange(100), chunks=(25,))
    >>> ds = windrow.read_zarr("scenes.zarr", target_block_bytes="4KiB")
    >>> ds.count(), ds.num_blocks(), ds.take_batch(32)["image"].shape
    (100, 2, (32, 8, 8))
    """
    if dimension is not None and (not isinstance(dimension, str) or isinstance(columns, Mapping)):
        raise PlanError(
            f"dimension={dimension!r} must be the name of a dimension, and not be given with a dict of columns"
        )
    source = open_zarr(
        paths,
        columns=None if columns is None else list(columns),
        column_paths=parse_columns(columns),
        dimension=dimension,
        filesystem=filesystem,
        storage_options=storage_options,
        target_block_bytes=parse_bytes(target_block_bytes, "target_block_bytes"),
        retries=Retries(seconds=retry_seconds),
    )
    return Dataset(LogicalPlan(source))
