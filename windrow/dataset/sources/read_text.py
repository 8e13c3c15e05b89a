"""read_text: lines of text as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.dataset.dataset import Dataset
from windrow.dataset.sources.file_arguments import read_files
from windrow.io.formats.compression import check_compression
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
    r"""Describe files of text as a dataset of one column, ``text``: a row for each line.

    Lines end at ``\n`` or ``\r\n``, which are no part of them. Plain files are cut at newlines
    into ranges of 16 MiB, each read alone; others are read as a whole. How many rows there
    are is not known before they were read.

    Parameters
    ----------
    paths
        Files, directories, globs or URLs, as in `read_parquet`.
    drop_empty_lines
        Whether lines without a character are left out.
    encoding
        Of the text, as Python names it.
    compression
        ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"``, ``"xz"``, ``"zlib"``, ``"infer"`` (by
        suffix), or None.
    columns, filter, filesystem, storage_options, partitioning, manifest, retry_seconds
        As in `read_parquet`.
    include_paths
        Whether to add a column ``path`` of the file that each row is from.
    target_block_bytes
        Ranges of a file are read together up to this many bytes.

    Raises
    ------
    SourceError
        If a path matches nothing, or a file cannot be read.
    PlanError
        If an argument is wrong.

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
