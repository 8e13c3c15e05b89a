"""read_mds: shards of MosaicML Streaming as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.mds_format import INDEX_NAME, MdsFormat

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_mds(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "auto",
    retry_seconds: float = 120,
) -> Dataset:
    """Return a dataset of MDS shards; reads ``index.json`` and the first samples.

    The shards that ``MDSWriter`` wrote are read as they are, locally or from object storage, without the library
    ``streaming``. A sample is a row. Numbers, strings and arrays have Arrow's types; arrays whose shape the encoding
    does not state are lists if they have one dimension, else a `VariableShapeTensorType`. JSON is text, images are
    bytes as stored: those of ``pil`` are the width, height and length of the mode as three ``uint32``, the mode, and
    the pixels. Pickles are never loaded: selecting a column of them is an error.

    Rows are known beforehand. Hashes in ``index.json`` are not compared.

    Parameters
    ----------
    paths
        Directories that contain an ``index.json``, the path of one, a directory of such directories, globs or URLs.
        Where a directory has an ``index.json``, those below it are not read: they name shards that it names too.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. All bytes are read; only these columns are decoded.
    schema
        The columns to read and their types, in this order, as a ``pyarrow.Schema``; None: all columns
        that shards have, in types that hold the values of all shards. Casts are checked as in `read_parquet`, and
        text of numbers (``str_int``, ``str_float``, ``str_decimal``) is parsed as its type.
        A column that some shards lack is null there; one that no shard has is an error.
    target_block_bytes
        Maximum bytes of a block, which is made of ranges of about 8 MiB, from several shards if they are small;
        ``"auto"`` as in `read_parquet`. A compressed shard is one range.

    Raises
    ------
    SourceError
        If a path matches nothing or has no ``index.json``, or a shard is missing or cannot be read.
    PlanError
        If an argument is invalid, or ``columns`` or ``filter`` name a column that does not exist.

    Examples
    --------
    >>> import json, struct
    >>> from pathlib import Path
    >>> import windrow
    >>> columns = {"column_names": ["x"], "column_encodings": ["int"], "column_sizes": [8]}
    >>> head, samples = json.dumps(columns).encode(), [struct.pack("<q", x) for x in (5, 7)]
    >>> begin = 4 * 4 + len(head)
    >>> shard = struct.pack("<4I", 2, begin, begin + 8, begin + 16) + head + b"".join(samples)
    >>> raw = {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}}
    >>> stated = {"version": 2, "format": "mds", "samples": 2, "raw_data": raw, "zip_data": None, **columns}
    >>> Path("mds").mkdir()
    >>> _ = Path("mds/shard.00000.mds").write_bytes(shard)
    >>> _ = Path("mds/index.json").write_text(json.dumps({"version": 2, "shards": [stated]}))
    >>> windrow.read_mds("mds").take()
    [{'x': 5}, {'x': 7}]
    """
    location = Location(_find_directories(paths), filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, schema=schema)
    return read_files(MdsFormat(), location, selection, target_block_bytes)


def _find_directories(paths: Any) -> Any:
    """The directories of indices, where paths are those of the indices themselves; other paths as they are."""
    if paths is None or isinstance(paths, (str, os.PathLike)):
        return paths if paths is None else _find_directory(paths)
    return [_find_directory(path) if isinstance(path, (str, os.PathLike)) else path for path in paths]


def _find_directory(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    folder, _, name = os.fspath(path).rpartition("/")
    return (folder or ".") if name == INDEX_NAME else path
