"""read_avro: Avro files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.avro_format import AvroFormat, load_fastavro

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_avro(
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
    """Return a dataset of Avro files (object container files); reads their headers and those of their blocks.

    Needs the extra ``avro``. A record is a row. Dates, times, timestamps and decimals are Arrow's, enums and
    UUIDs text, and other logical types their stored values. A union of null and one type is a nullable column,
    and one of numbers has the type that holds them all. Selecting a column of another union, or of a recursive
    type, is an error. Codecs: null, deflate, snappy, zstandard, bzip2, xz.

    Rows are known beforehand, because each block of a file states how many it holds. To find the blocks, all of a
    file in object storage is read once, unless blocks are larger than 1 MiB; ``Dataset.save_manifest``
    keeps what was found.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. All bytes are read; only these columns are decoded.
    schema
        The columns to read and their types, in this order, as a ``pyarrow.Schema``; None: all columns
        that files have, in types that hold the values of all files. Casts are checked as in `read_parquet`.
        A column that some files lack is null there, whatever its default in the schemas of others; one that no file
        has is an error.
    target_block_bytes
        Maximum bytes of a block, which is made of ranges of 8 MiB of a file; ``"auto"`` as in `read_parquet`.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or is not Avro, or no type holds a column's
        values in all files.
    PlanError
        If an argument is invalid, ``columns`` or ``filter`` name a column that does not exist, or the extra is
        not installed.

    Examples
    --------
    >>> import fastavro, windrow
    >>> fields = [{"name": "fare", "type": "double"}, {"name": "city", "type": ["null", "string"]}]
    >>> rows = [{"fare": 5.0, "city": "Bern"}, {"fare": -1.0, "city": None}]
    >>> with open("trips.avro", "wb") as file:
    ...     fastavro.writer(file, {"type": "record", "name": "Trip", "fields": fields}, rows)
    >>> windrow.read_avro("trips.avro").take()
    [{'fare': 5.0, 'city': 'Bern'}, {'fare': -1.0, 'city': None}]
    """
    load_fastavro()
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, schema=schema)
    return read_files(AvroFormat(), location, selection, target_block_bytes)
