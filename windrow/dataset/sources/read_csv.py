"""read_csv: CSV files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, parsed_types, read_files
from windrow.io.formats.csv_format import CsvFormat, CsvOptions, Quoting, check_csv_type
from windrow.io.formats.file_encodings import check_compression, check_encoding
from windrow.io.formats.inferred_types import check_dtypes
from windrow.io.formats.line_formats import LineFiles

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def read_csv(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    delimiter: str = ",",
    header: bool | None = None,
    column_names: Sequence[str] | None = None,
    skip_rows: int = 0,
    dtypes: Mapping[str, pa.DataType] | pa.Schema | None = None,
    null_values: Sequence[str] | None = None,
    strings_can_be_null: bool = False,
    quote_char: str | None = '"',
    double_quote: bool = True,
    escape_char: str | None = None,
    newlines_in_values: bool = False,
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
    r"""Return a dataset of CSV files; lists the files and reads only their beginnings.

    Each column has one type in all files: the one in ``dtypes``, else one inferred from the first
    256 KiB of every file. A later value that does not fit raises an error; it never changes the
    type. Uncompressed files are divided at newlines into ranges of 16 MiB that are read
    independently; compressed files are read as a whole. The number of rows is unknown until they
    are read.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    delimiter
        The character between values.
    header
        Whether the first row of a file holds the column names; None: True unless
        ``column_names`` are given. Without either, columns are called ``f0``, ``f1`` ...
    column_names
        The column names; they replace the header if there is one.
    skip_rows
        Number of lines to skip at the beginning of each file, before the header.
    dtypes
        The types of some or all columns.
    null_values
        Unquoted values that are read as null; None: the empty value, ``NA``, ``null``, ``NaN`` and
        other usual spellings.
    strings_can_be_null
        Whether ``null_values`` apply to string columns too.
    quote_char, double_quote, escape_char
        The quote character, whether two of them in a quoted value mean one, and the escape
        character; None: no quoting or no escaping.
    newlines_in_values
        Whether quoted values can contain newlines; files are then read as a whole.
    encoding
        The text encoding, by its Python name.
    compression
        ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"``, ``"xz"``, ``"zlib"``, ``"infer"`` (from
        the suffix), or None.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`. All bytes are read; only these columns are converted.
    schema
        The columns to read and their types, in this order, as a ``pyarrow.Schema``; None: all columns
        that files have, in types that hold the values of all files. Values are parsed as these types, as with
        ``dtypes``, which it replaces.
        A column that some files lack is null there; one that no file has is an error.
    target_block_bytes
        Maximum bytes of a block, which is made of adjacent ranges of a file; ``"auto"`` as in `read_parquet`.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or is not CSV, or its columns differ
        from those of other files.
    PlanError
        If an argument is invalid.

    Examples
    --------
    >>> from pathlib import Path
    >>> import pyarrow as pa, windrow
    >>> _ = Path("trips.csv").write_text("fare,tip\n5.0,1\n-1.0,0\n")
    >>> windrow.read_csv("trips.csv").take()
    [{'fare': 5.0, 'tip': 1}, {'fare': -1.0, 'tip': 0}]
    >>> windrow.read_csv("trips.csv", columns=["tip"], dtypes={"tip": pa.float32()}).take(1)
    [{'tip': 1.0}]
    """
    quoting = Quoting(
        _check_character("delimiter", delimiter),
        "" if quote_char is None else _check_character("quote_char", quote_char),
        double_quote,
        "" if escape_char is None else _check_character("escape_char", escape_char),
    )
    rows = CsvOptions(
        quoting,
        header=column_names is None if header is None else header,
        column_names=tuple(column_names or ()),
        skip_rows=0 if skip_rows == 0 else check_count(skip_rows, "skip_rows"),
        dtypes=check_dtypes(
            parsed_types(dtypes, schema), "dtypes" if schema is None else "schema", check_csv_type
        ),
        null_values=None if null_values is None else tuple(null_values),
        strings_can_be_null=strings_can_be_null,
        newlines_in_values=newlines_in_values,
    )
    lines = LineFiles(check_compression(compression), check_encoding(encoding), not newlines_in_values)
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths, schema=schema)
    return read_files(CsvFormat(lines, rows, schema is not None), location, selection, target_block_bytes)


def _check_character(name: str, character: str) -> str:
    if (
        not isinstance(character, str)
        or len(character) != 1
        or not character.isascii()
        or character in "\r\n"
    ):
        raise PlanError(f"{name}={character!r}: give one ASCII character other than a line break")
    return character
