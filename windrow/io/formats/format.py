"""What a file format is to a source: a look at a file, and a reader of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.source import BlockReader
from windrow.io.catalog.fragments import Fragment
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["FileFormat", "Format", "Survey", "SurveyedFormat", "UnifyingFormat"]


class FileFormat(Protocol):
    """How files of one kind are read: a frozen value with the user's options, picklable."""

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


class Format(FileFormat, Protocol):
    """A format whose files are looked at one by one."""

    def look(self, files: Files, path: str) -> Fragment:
        """Look at a file, reading as little of it as planning needs; called by several threads.

        Raises
        ------
        SourceError
            If it cannot be read, or is not of this format.
        """
        ...


@dataclass(frozen=True, eq=False)
class Survey:
    """What files of one row each hold, as far as their sizes and a look at some of them tell.

    Attributes
    ----------
    schema
        The columns of all files.
    encoded_bytes
        (files,) what blocks are cut by.
    variable
        For each column whose values differ in width, (files,) its bytes in memory.
    """

    schema: pa.Schema
    encoded_bytes: NDArray[np.int64]
    variable: Mapping[str, NDArray[np.int64]]


@runtime_checkable
class SurveyedFormat(FileFormat, Protocol):
    """A format of one row a file, and no nulls, of which a listing tells enough: no file need be looked at."""

    def survey(self, files: Files, paths: Sequence[str], file_bytes: NDArray[np.int64]) -> Survey:
        """Tell what files of these sizes hold; may look at a few of them.

        Raises
        ------
        SourceError
            If one of those cannot be read, or is not of this format.
        """
        ...


@runtime_checkable
class UnifyingFormat(Format, Protocol):
    """A format whose files state no types, so that more of them fit together than Arrow's types do."""

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
        """One schema for files given as (path, schema); see ``windrow.io.catalog.schemas.unify_schemas``."""
        ...
