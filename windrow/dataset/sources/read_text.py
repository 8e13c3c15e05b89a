"""read_text: text files as a Dataset, one row per line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import read_files
from windrow.io.formats.decompression import check_compression
from windrow.io.formats.line_ranges import LineFiles
from windrow.io.formats.text_encoding import check_encoding
from windrow.io.formats.text_format import TextFormat

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["read_text"]


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
    target_block_bytes: int | str = "64MiB",
    retry_seconds: float = 120,
) -> Dataset:
    r"""Return a dataset of text files with one column, ``text``, and one row per line.

    Lines end at ``\n`` or ``\r\n``, which are removed. Uncompressed files are divided at newlines
    into ranges of 16 MiB that are read independently; compressed files are read as a whole. The
    number of rows is unknown until they are read.

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
    columns, filter, filesystem, storage_options, partitioning, manifest, retry_seconds
        As in `read_parquet`.
    include_paths
        Whether to add a column ``path`` with the file that each row comes from.
    target_block_bytes
        Maximum bytes of a block, which is made of adjacent ranges of a file.

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
    return read_files(
        paths,
        TextFormat(LineFiles(check_compression(compression), check_encoding(encoding)), drop_empty_lines),
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
