"""read_text: text files as a Dataset, one row per line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import Location, Selection, read_files
from windrow.io.formats.file_encodings import check_compression, check_encoding
from windrow.io.formats.line_formats import LineFiles, TextFormat

if TYPE_CHECKING:
    import pyarrow.compute as pc


def read_text(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    drop_empty_lines: bool = True,
    encoding: str = "utf-8",
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
    r"""Return a dataset of text files with one column, ``text``, and one row per line.

    Lines end at ``\n`` or ``\r\n``, which are removed. Uncompressed files are divided at newlines
    into ranges of 16 MiB that are read independently; compressed files are read as a whole. The
    number of rows is unknown until they are read. `read_binary_files` makes a row of a whole file.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    drop_empty_lines
        Whether to drop lines without characters.
    encoding
        The text encoding, by its Python name.
    compression
        ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"``, ``"xz"``, ``"zlib"``, ``"infer"`` (from
        the suffix), or None.
    columns, filter, filesystem, storage_options, partitioning, include_paths, manifest, retry_seconds
        As in `read_parquet`.
    target_block_bytes
        Maximum bytes of a block, which is made of adjacent ranges of a file; ``"auto"`` as in `read_parquet`.

    Raises
    ------
    SourceError
        If a path matches nothing, or a file cannot be read.
    PlanError
        If an argument is invalid.

    Examples
    --------
    >>> from pathlib import Path
    >>> import windrow
    >>> _ = Path("poem.txt").write_text("The fog comes\n\non little cat feet.\n")
    >>> windrow.read_text("poem.txt").take()
    [{'text': 'The fog comes'}, {'text': 'on little cat feet.'}]
    """
    format = TextFormat(LineFiles(check_compression(compression), check_encoding(encoding)), drop_empty_lines)
    location = Location(paths, filesystem, storage_options, manifest, retry_seconds)
    selection = Selection(columns, filter, partitioning, include_paths)
    return read_files(format, location, selection, target_block_bytes)
