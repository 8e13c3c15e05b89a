"""read_json: files of JSON as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, parsed_types, read_files
from windrow.io.formats.file_encodings import check_compression, check_encoding
from windrow.io.formats.inferred_types import check_dtypes
from windrow.io.formats.json_format import JsonFormat, check_json_type
from windrow.io.formats.line_formats import LineFiles

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_json(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    dtypes: Mapping[str, pa.DataType] | pa.Schema | None = None,
    encoding: str = "utf-8",
    compression: str | None = "infer",
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
    r"""Return a dataset of JSON files: one object per line, or one array of objects; reads only their beginnings.

    Each key is a column, null if an object lacks it. A column has one type in all files: the one in
    ``dtypes``, else one inferred from the first 256 KiB of every file. A later value that does not
    fit raises an error, and so does a key that first occurs after these 256 KiB; with ``columns=``,
    other keys are ignored. Uncompressed files of lines are divided at newlines into ranges of
    16 MiB that are read independently; compressed files are read as a whole. A file that is one
    array, such as pandas' ``to_json(orient="records")`` writes, is one block. Its elements are
    parsed some MiB at a time. The number of rows is unknown until they are read.

    Integers keep their digits: a column of integers beyond 64 bits with a sign is inferred as
    ``uint64``. An integer that its column's inferred type cannot hold raises an error.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    dtypes
        The types of some or all columns. A field that is ``pa.string()`` here, at any depth, holds
        strings as they are and the JSON text of other values, such as the lists in chat data that
        has strings in other rows.
    encoding
        The text encoding, by its Python name.
    compression
        ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"``, ``"xz"``, ``"zlib"``, ``"infer"`` (from
        the suffix), or None.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. All bytes are parsed; only these columns are converted.
    schema
        The columns to read and their types, in this order, as a ``pyarrow.Schema``; None: all columns
        that files have, in types that hold the values of all files. Values are parsed as these types, as with
        ``dtypes``, which it replaces; other keys are ignored.
        A column that some files lack is null there; so is one that no file has.
    target_block_bytes
        Maximum bytes of a block, which is made of adjacent ranges of a file; ``"auto"`` as in `read_parquet`.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or holds neither lines nor an array of
        JSON objects, a column has incompatible types, or an integer would be rounded.
    PlanError
        If an argument is invalid.

    Examples
    --------
    >>> from pathlib import Path
    >>> import pyarrow as pa
    >>> import windrow
    >>> _ = Path("trips.jsonl").write_text('{"fare": 5.0, "tags": ["night"]}\n{"fare": -1.0}\n')
    >>> windrow.read_json("trips.jsonl").take()
    [{'fare': 5.0, 'tags': ['night']}, {'fare': -1.0, 'tags': None}]
    >>> _ = Path("chat.json").write_text('[{"content": "hi"}, {"content": [{"type": "image"}]}]')
    >>> windrow.read_json("chat.json", dtypes={"content": pa.string()}).take()
    [{'content': 'hi'}, {'content': '[{"type": "image"}]'}]
    """
    format = JsonFormat(
        LineFiles(check_compression(compression), check_encoding(encoding)),
        check_dtypes(parsed_types(dtypes, schema), "dtypes" if schema is None else "schema", check_json_type),
        given_schema=schema is not None,
    )
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, schema=schema)
    return read_files(format, location, selection, target_block_bytes)
