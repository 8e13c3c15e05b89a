"""from_huggingface: a Hugging Face ``datasets.Dataset`` as a Dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.from_memory import dataset_of_tables
from windrow.io.adapters.huggingface import list_rows
from windrow.io.catalog.safe_casts import plain_table


def from_huggingface(
    dataset: Any, *, decode: bool = False, target_block_bytes: int | str = "64MiB"
) -> Dataset:
    """Return the rows of a Hugging Face ``datasets.Dataset``; needs the extra ``huggingface``.

    Nothing is copied: every process that reads maps the dataset's memory-mapped files itself, so
    they must exist under the same path on other machines. Selections by ``select``, ``shuffle``,
    ``filter`` and ``train_test_split`` are read through the dataset's indices. Columns are read
    as stored: formats and transforms of the dataset are not applied, class labels are integers,
    translations structs, and arrays of fixed shape (``Array2D`` ...) tensors. Images and audio are
    structs of ``bytes`` and ``path``, which `decode_images` and `decode_audio` take.

    Parameters
    ----------
    dataset
        A ``Dataset``, that is, one split of a ``DatasetDict``.
    decode
        Whether to decode the columns whose feature is ``Image()`` or ``Audio()``, unless that has
        ``decode=False``. Images become arrays in the ``mode`` of their feature, RGB without one, turned as
        their EXIF data says. Audio gets the feature's ``sampling_rate``, which it must have, and ``num_channels``,
        one without it. What is within lists stays as stored. Decoding follows the shuffle, which
        moves compressed bytes then; if transforms come before the shuffle, they get decoded values.
        For images of one size, and random crops, leave this out and call `decode_images`.
    target_block_bytes
        Approximate size of a block: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For a ``DatasetDict``, an ``IterableDataset`` or any other object, if ``datasets`` or what
        decodes is not installed, or if an ``Audio()`` feature cannot be followed; the message names the
        alternative.

    Notes
    -----
    A checkpoint identifies each file by its size and the content of 64 evenly spaced pages.

    Examples
    --------
    >>> import datasets, windrow
    >>> rows = datasets.Dataset.from_dict({"x": [1, 2, 3, 4]})
    >>> windrow.from_huggingface(rows.select([3, 0])).take()
    [{'x': 4}, {'x': 1}]
    >>> from PIL import Image
    >>> features = datasets.Features({"image": datasets.Image()})
    >>> photos = {"image": [Image.new("RGB", (40, 30), color) for color in ("red", "blue")]}
    >>> ds = windrow.from_huggingface(datasets.Dataset.from_dict(photos, features), decode=True)
    >>> ds.window().random_shuffle_each_window(seed=7)
    DatasetPipeline
      from_huggingface: 1 fragment, 1 block; 1 column
      .window(bytes_per_window='1.0GiB')
      .random_shuffle_each_window(seed=7)
      .decode_images('image')
    >>> [image.shape for image in ds.take_batch()["image"]]
    [(30, 40, 3), (30, 40, 3)]
    """
    library = require("datasets", "huggingface", "from_huggingface()")
    if isinstance(dataset, library.IterableDataset):
        raise PlanError(
            "from_huggingface: an IterableDataset can only be read in one order; use "
            'read_parquet("hf://datasets/owner/name") for the files of a dataset on the Hub, '
            "from_generator(lambda: iter(dataset)), which stages its rows, or load it with streaming=False"
        )
    if isinstance(dataset, dict):
        splits = ", ".join(map(repr, dataset))
        raise PlanError(
            f"from_huggingface: a {type(dataset).__name__} has splits ({splits}): give one of them"
        )
    if not isinstance(dataset, library.Dataset):
        raise PlanError(f"from_huggingface: {type(dataset).__qualname__} is not a datasets.Dataset; give one")
    if not dataset.column_names:
        raise PlanError("from_huggingface: the dataset has no columns; give at least one")
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    if not isinstance(decode, bool):
        raise PlanError(f"from_huggingface: decode={decode!r} must be True or False")
    made = _read(dataset, size)
    return _decoded(made, dataset.features) if decode else made


def _read(dataset: Any, size: int) -> Dataset:
    if not dataset.cache_files:
        table = plain_table(dataset.with_format("arrow")[:])
        return dataset_of_tables([table], "from_huggingface", size)
    return Dataset(LogicalPlan(list_rows(dataset, "from_huggingface", size)))


def _decoded(ds: Dataset, features: Mapping[str, Any]) -> Dataset:
    """Decode columns as their features say, behind the shuffle if nothing before it needs their values."""
    for name, feature in features.items():
        kind = getattr(feature, "_type", None)
        if not getattr(feature, "decode", False):
            continue
        if kind == "Image":
            ds = ds.decode_images(name, mode=feature.mode or "RGB", exif_orientation=True)
        elif kind == "Audio":
            ds = _with_audio(ds, name, feature)
    late = tuple(replace(stage, is_late=True) for stage in ds._plan.before)
    return Dataset(replace(ds._plan, before=late))


def _with_audio(ds: Dataset, name: str, feature: Any) -> Dataset:
    if feature.sampling_rate is None:
        raise PlanError(
            f"from_huggingface: the Audio feature of column {name!r} has no sampling_rate, and audio is resampled to "
            f"one rate: give one with cast_column({name!r}, Audio(sampling_rate=...)), or leave out decode=True"
        )
    if getattr(feature, "stream_index", None) is not None:
        raise PlanError(
            f"from_huggingface: the Audio feature of column {name!r} has a stream_index, and the first stream is "
            "what is decoded: cast the column to a feature without one, or leave out decode=True"
        )
    channels = getattr(feature, "num_channels", None) or 1
    return ds.decode_audio(name, sample_rate=feature.sampling_rate, channels=channels)
