"""read_images: images as a Dataset of tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import read_files
from windrow.io.formats.image_format import ImageFormat

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["read_images"]


def read_images(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    size: tuple[int, int] | None = None,
    mode: str = "RGB",
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
    """Describe images as a dataset, one row a file: lists them and looks at a few, nothing else.

    Images are decoded by Pillow, as its ``open`` gives them: the first of several frames, not
    turned as EXIF says. With ``size`` the column ``image`` is of tensors, and batches are
    (rows, height, width, channels) arrays, or (rows, height, width) in modes of one channel.
    Without, images may differ in shape: ``image`` then is the bytes of the pixels, row by row,
    and ``shape`` is (height, width, channels), so that ``np.frombuffer(row["image"],
    np.uint8).reshape(row["shape"])`` is the image.

    Parameters
    ----------
    paths
        A file, a directory (all visible files below it, so that one that is no image is an
        error), a glob, or a list of these, on local disk or as a URL that fsspec knows.
    size
        (height, width) that all images are scaled to, bilinearly; those that have it already are
        left as they are. None: none is scaled.
    mode
        What Pillow calls the kind of pixels that all are converted to: ``"RGB"``, ``"L"``,
        ``"RGBA"``, ``"CMYK"``, ``"YCbCr"``, ``"HSV"``, ``"LAB"`` and ``"LA"`` have bytes,
        ``"I;16"`` uint16, ``"I"`` int32, ``"F"`` float32. Images of more than eight bits are
        not cut to bytes, but refused.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression: only rows for which it is true are delivered. One of paths,
        directories and partitions alone is decided before anything is read.
    filesystem, storage_options, partitioning, manifest, retry_seconds
        As for `read_parquet`. A manifest is one of this size and mode.
    include_paths
        Whether to add a column ``path``: the file that a row is.
    directory_column
        A column to add: the name of the directory that a file lies in, where that is its
        class. None: none.
    target_block_bytes
        Images are read together up to this many bytes, decoded; estimated without ``size``.

    Raises
    ------
    SourceError
        If a path matches nothing, or a file that is looked at is no image.
    PlanError
        If an argument is wrong, Pillow is not installed, or ``columns`` or ``filter`` name a
        column that is not there.

    Examples
    --------
    >>> import os, windrow
    >>> from PIL import Image
    >>> for kind, color in (("cat", "red"), ("dog", "blue")):
    ...     os.mkdir(kind)
    ...     Image.new("RGB", (40, 30), color).save(f"{kind}/0.png")
    >>> ds = windrow.read_images(["cat", "dog"], size=(24, 32), directory_column="label")
    >>> batch = ds.take_batch()
    >>> batch["image"].shape, batch["label"].tolist()
    ((2, 24, 32, 3), ['cat', 'dog'])
    """
    return read_files(
        paths,
        ImageFormat(size, mode),
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
