"""read_webdataset: WebDataset tar archives as a Dataset, one row per sample."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.optional_dependencies import require
from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.file_encodings import check_compression
from windrow.io.formats.inferred_types import check_dtypes
from windrow.io.formats.webdataset_format import WebDatasetFormat

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_webdataset(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    decode: str | None = None,
    dtypes: Mapping[str, pa.DataType] | pa.Schema | None = None,
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
    """Return a dataset of WebDataset tar archives; reads only their beginnings.

    Adjacent members whose names are equal up to the first dot form a sample, which is a row. Its
    columns are ``__key__``, which is that common name, and one per extension, null if a sample lacks
    it: ``txt`` is text, ``cls``, ``id`` and ``index`` are integers, ``json`` is parsed, ``npy`` is an
    array, and any other extension is bytes. Arrays of one dimension are lists, those of one shape
    fixed-shape tensors, and those of several shapes a `VariableShapeTensorType`.
    Types are inferred from the first 100 samples of the archives; a later member that does not fit
    raises an error. Each archive is a block, whose number of rows is unknown until it is read.
    Nothing is unpickled.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    decode
        A Pillow mode such as ``"RGB"`` or ``"L"``: images (``jpg``, ``png``, ``webp`` ...) become
        uint8 arrays, (height, width, channels) or (height, width), of one size or of several. None:
        images stay bytes. Needs the extra ``images``.
    dtypes
        The types of some extensions; ``pa.binary()`` keeps bytes, ``pa.string()`` text.
    compression
        ``"gzip"``, ``"zstd"``, ``"bz2"``, ``"xz"``, ``"lz4"``, ``"infer"`` (from the suffix), or None.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. All bytes are read; only these columns are decoded.
    target_block_bytes
        Has no effect, because archives are not divided.

    Raises
    ------
    SourceError
        If a path matches nothing, or a file cannot be read or is not an archive of samples.
    PlanError
        If an argument is invalid, or Pillow is needed and not installed.

    Examples
    --------
    >>> import io, tarfile, windrow
    >>> with tarfile.open("shard-0.tar", "w") as archive:
    ...     for name, content in {"a.txt": b"a cat", "a.cls": b"3", "b.txt": b"a dog", "b.cls": b"5"}.items():
    ...         member = tarfile.TarInfo(name)
    ...         member.size = len(content)
    ...         archive.addfile(member, io.BytesIO(content))
    >>> windrow.read_webdataset("shard-*.tar").take()
    [{'__key__': 'a', 'txt': 'a cat', 'cls': 3}, {'__key__': 'b', 'txt': 'a dog', 'cls': 5}]
    """
    if decode is not None:
        require("PIL", "images", "decode=")
    format = WebDatasetFormat(check_compression(compression), decode, check_dtypes(dtypes))
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths)
    return read_files(format, location, selection, target_block_bytes)
