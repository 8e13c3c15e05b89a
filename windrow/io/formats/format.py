"""What a file format is to a source: a look at a file, and a reader of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from windrow.core.source import BlockReader
from windrow.io.filesystems import Files
from windrow.io.fragments import Fragment
from windrow.io.partitions import Partitions

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Format"]


class Format(Protocol):
    """How files of one kind are looked at and read: a frozen value with the user's options, picklable."""

    @property
    def name(self) -> str:
        """What users call it: ``"Parquet"``."""
        ...

    @property
    def options(self) -> str:
        """The options that change what rows a file holds, or their columns, in words that stay."""
        ...

    @property
    def rows_known(self) -> bool:
        """Whether a look tells how many rows a row group has."""
        ...

    @property
    def joins_files(self) -> bool:
        """Whether adjacent files are joined into blocks, as row groups of a file are."""
        ...

    def look(self, files: Files, path: str) -> Fragment:
        """Look at a file, reading as little of it as planning needs; called by several threads.

        Raises
        ------
        SourceError
            If it cannot be read, or is not of this format.
        """
        ...

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> BlockReader:
        """A reader of blocks: locators are tuples of ``RowGroups``, one for each file of the block.

        Parameters
        ----------
        schema
            Of every block: selected columns, of files and of partitions.
        stored
            Of the files, all columns unified; what a filter sees, with partitions.
        partitions
            The columns that come from paths.
        row_filter
            Keeps rows for which it is true; None keeps all.
        """
        ...
