"""read_tfrecords: TFRecord files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.file_encodings import check_compression
from windrow.io.formats.inferred_types import check_dtypes
from windrow.io.formats.tfrecord_features import list_kind, load_example
from windrow.io.formats.tfrecord_format import TFRecordFormat, load_checksum

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_tfrecords(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    features: Mapping[str, pa.DataType] | pa.Schema | None = None,
    compression: str | None = "infer",
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
    """Return a dataset of TFRecord files of ``tf.train.Example``; reads only their beginnings.

    Needs the extra ``tfrecords`` but not TensorFlow. Each feature is a column, null if an example
    lacks it. Floats are ``float``, integers ``int64``, byte strings ``binary``. A column holds single
    values if each of the first 1,000 examples of a file has exactly one, else lists. Each file is a
    block, whose number of rows is unknown until it is read. Checksums are verified.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    features
        The features to read and their types, such as ``pa.string()``, ``pa.int8()``,
        ``pa.list_(pa.float32())``, ``pa.list_(pa.float32(), 16)``, or
        ``pa.fixed_shape_tensor(pa.float32(), (4, 4))``; other features are ignored. None: all
        features of the first examples; a later example with other features raises an error unless
        ``columns`` are given.
    compression
        ``"gzip"``, ``"zlib"``, ``"infer"`` (from the suffix), or None; other codecs are read too.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. All bytes are read; only these columns are decoded.
    target_block_bytes
        Has no effect, because files are not divided.

    Raises
    ------
    SourceError
        If a path matches nothing, or a file cannot be read or does not hold records of examples.
    PlanError
        If an argument is invalid, or the extra is not installed.

    Examples
    --------
    >>> import windrow
    >>> written = windrow.from_items([{"label": 1, "name": "cat"}, {"label": 2, "name": "dog"}])
    >>> _ = written.write_tfrecords("records", mode="overwrite")
    >>> windrow.read_tfrecords("records").take(1)
    [{'label': 1, 'name': b'cat'}]
    >>> import pyarrow as pa
    >>> windrow.read_tfrecords("records", features={"name": pa.string()}).take(1)
    [{'name': 'cat'}]
    """
    load_example()
    load_checksum()
    types = check_dtypes(features, "features")
    for name, kind in (types or {}).items():
        if not list_kind(kind):
            raise PlanError(
                f"features= gives {kind} for {name!r}: features hold floats, integers, strings and lists of them"
            )
    format = TFRecordFormat(check_compression(compression), types)
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths)
    return read_files(format, location, selection, target_block_bytes)
