"""read_csv: CSV files as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.errors import PlanError
from windrow.dataset.argument_checks import check_count
from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import read_files
from windrow.io.formats.compression import check_compression
from windrow.io.formats.csv_format import CsvFormat
from windrow.io.formats.csv_parsing import CsvOptions, check_csv_type
from windrow.io.formats.csv_quotes import Quoting
from windrow.io.formats.line_ranges import LineFiles
from windrow.io.formats.text_encoding import check_encoding
from windrow.io.formats.user_types import check_dtypes

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

__all__ = ["read_csv"]


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
    filter: pc.Expression | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    partitioning: str | None = "hive",
    include_paths: bool = False,
    manifest: str | os.PathLike[str] | None = None,
    target_block_bytes: int | str = "64MiB",
    retry_seconds: float = 120,
) -> Dataset:
    r"""Describe CSV files as a dataset: lists them and reads their beginnings, nothing else.

    Each column has one type in all files: what ``dtypes`` says, else what holds the values
    of the first 256 KiB of every file. A later value that does not fit is an error, never
    another type. Plain files are cut at newlines into ranges of 16 MiB, each read alone;
    others are read as a whole. The number of rows is unknown until they are read.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    delimiter
        The character between values.
    header
        Whether a file begins with the names of its columns; None: unless ``column_names``
        are given. Without either, columns are ``f0``, ``f1`` ...
    column_names
        The names; where there is a header too, in its place.
    skip_rows
        Lines to skip at the beginning of each file, before the header.
    dtypes
        The types of some or all columns.
    null_values
        What is null, beside what is in quotes; None: the empty value, ``NA``, ``null``,
        ``NaN`` and other usual spellings.
    strings_can_be_null
        Whether that holds for columns of strings too.
    quote_char, double_quote, escape_char
        What encloses values with delimiters, whether two of it stand for one, and what
        makes the next character an ordinary one; None: nothing does.
    newlines_in_values
        Whether values in quotes may have newlines; files are read as a whole then.
    encoding
        The text encoding, by its Python name.
    compression
        ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"``, ``"xz"``, ``"zlib"``, ``"infer"`` (from
        the suffix), or None.
    columns, filter, filesystem, storage_options, partitioning, manifest, retry_seconds
        As in `read_parquet`. All bytes are read; only these columns are converted.
    include_paths
        Whether to add a column ``path`` with the file that each row comes from.
    target_block_bytes
        Maximum bytes of a block, which is made of adjacent ranges of a file.

    Raises
    ------
    SourceError
        If a path matches nothing, a file cannot be read or is no CSV, or its columns are
        not those of the others.
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
        dtypes=check_dtypes(dtypes, parse=check_csv_type),
        null_values=None if null_values is None else tuple(null_values),
        strings_can_be_null=strings_can_be_null,
        newlines_in_values=newlines_in_values,
    )
    lines = LineFiles(check_compression(compression), check_encoding(encoding), not newlines_in_values)
    return read_files(
        paths,
        CsvFormat(lines, rows),
        columns=columns,
        filter=filter,
        filesystem=filesystem,
        storage_options=storage_options,
        partitioning=partitioning,
        include_paths=include_paths,
        manifest=manifest,
        target_block_bytes=target_block_bytes,
        retry_seconds=retry_seconds,
    )


def _check_character(name: str, character: str) -> str:
    if (
        not isinstance(character, str)
        or len(character) != 1
        or not character.isascii()
        or character in "\r\n"
    ):
        raise PlanError(f"{name}={character!r}: give one character of ASCII that ends no line")
    return character
