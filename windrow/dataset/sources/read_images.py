"""read_images: image files as a Dataset of tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.image_format import ImageFormat
from windrow.io.formats.image_pixels import check_size

if TYPE_CHECKING:
    import pyarrow.compute as pc


def read_images(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    size: int | tuple[int, int] | None = None,
    mode: str = "RGB",
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
    """Return a dataset of image files, one row per file; lists the files and reads a few headers.

    Pillow decodes the images: only the first frame, and without applying the EXIF orientation. With
    ``size``, the column ``image`` holds tensors, and batches are (rows, height, width, channels)
    arrays, or (rows, height, width) in single-channel modes. Without ``size``, images can differ
    in shape: the column is then a `VariableShapeTensorType`. NumPy batches hold an object array of
    (height, width, channels) arrays, and torch batches a list of tensors.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`. A file that is not an image raises
        an error.
    size
        (height, width) to which images of another size are scaled, bilinearly, or one number for both.
        None: images are not scaled.
    mode
        The Pillow mode to which all images are converted: ``"RGB"``, ``"L"``, ``"RGBA"``,
        ``"CMYK"``, ``"YCbCr"``, ``"HSV"``, ``"LAB"`` and ``"LA"`` are uint8, ``"I;16"`` uint16,
        ``"I"`` int32, ``"F"`` float32. Images of more than eight bits per channel raise an error in
        the uint8 modes instead of being truncated.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. A filter on paths, directories and partitions only is evaluated before
        anything is read. A manifest is only valid for the same size and mode.
    directory_column
        Name of a column to add that holds the name of each file's directory, which is often its
        class. None: no column is added.
    target_block_bytes
        Maximum decoded bytes of a block, which holds several images; estimated without ``size``.
        ``"auto"`` as in `read_parquet`, where images are row groups.

    Raises
    ------
    SourceError
        If a path matches nothing, one of the sampled files is not an image, or an image has more
        pixels than Pillow's limit (``PIL.Image.MAX_IMAGE_PIXELS``) allows.
    PlanError
        If an argument is invalid, Pillow is not installed, or ``columns`` or ``filter`` name a
        column that does not exist.

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
    >>> [image.shape for image in windrow.read_images(["cat", "dog"]).take_batch()["image"]]
    [(30, 40, 3), (30, 40, 3)]
    """
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, directory_column)
    format = ImageFormat(None if size is None else check_size(size), mode)
    return read_files(format, location, selection, target_block_bytes)
