"""The interface of file formats: how a file is inspected, and which reader decodes its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.source import BlockReader
from windrow.io.catalog.blocks import CutSizes
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import Fragment
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["FileFormat", "Format", "Survey", "SurveyedFormat", "UnifyingFormat"]


class FileFormat(Protocol):
    """How to read files of one format: a frozen, picklable value with the user's options."""

    @property
    def name(self) -> str:
        """The format's name in messages: ``"Parquet"``."""
        ...

    @property
    def options(self) -> str:
        """The options that affect rows or columns, as text that stays the same across releases (saved manifests)."""
        ...

    @property
    def rows_known(self) -> bool:
        """Whether inspecting a file yields exact row counts of its row groups."""
        ...

    @property
    def joins_files(self) -> bool:
        """Whether a block can span adjacent files, not only adjacent row groups of one file."""
        ...

    @property
    def cut_sizes(self) -> CutSizes | None:
        """Which row groups are cut into several blocks; None if the reader reads whole row groups only."""
        ...

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> BlockReader:
        """Make a block reader; each locator is a tuple of ``RowGroups``, one per file of the block.

        ``schema`` is that of every block: selected columns, from files and partitions. ``stored`` is the
        unified schema of all file columns; filters see these and the partition columns.
        """
        ...


class Format(FileFormat, Protocol):
    """A format whose files are inspected one by one."""

    def look(self, files: Files, path: str) -> Fragment:
        """Inspect a file, reading no more of it than planning needs; several threads call this."""
        ...


@dataclass(frozen=True, eq=False)
class Survey:
    """Estimates for files of one row each, from their sizes and a sample of files.

    ``encoded_bytes``, (files,), are the sizes by which blocks are cut; ``variable`` has, for each
    variable-width column, (files,) its bytes in memory.
    """

    schema: pa.Schema
    encoded_bytes: NDArray[np.int64]
    variable: Mapping[str, NDArray[np.int64]]


@runtime_checkable
class SurveyedFormat(FileFormat, Protocol):
    """A format of one row per file and no nulls: a listing suffices, so not every file is opened."""

    def survey(self, files: Files, paths: Sequence[str], file_bytes: NDArray[np.int64]) -> Survey:
        """Estimate what files of these sizes hold; this can open a sample of them."""
        ...


@runtime_checkable
class UnifyingFormat(Format, Protocol):
    """A format whose files declare no types, so that inferred types unify more freely than Arrow's."""

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        """Merge the schemas of files, given as (path, schema); see ``windrow.io.catalog.schemas.merge_schemas``."""
        ...
