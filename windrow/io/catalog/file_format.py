"""The interface of file formats: how a file is inspected, and which reader decodes its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.chosen_rows import take_rows
from windrow.core.source import BlockAddress, BlockReader
from windrow.io.catalog.blocks import CutSizes
from windrow.io.catalog.filters import filter_columns, kept_places, with_filter_columns
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import Fragment, FragmentFacts
from windrow.io.catalog.safe_casts import Locate, cast_table
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.storage.file_versions import RowGroups, Version
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc


@dataclass(frozen=True)
class FileReading:
    """What is read of the blocks of files; readers extend it.

    ``schema`` is that of every block: selected columns, from files and partitions. ``stored`` is the unified schema
    of all file columns; ``filter`` sees these and the partition columns.
    """

    files: Files
    schema: pa.Schema
    stored: pa.Schema
    partitions: Partitions
    filter: pc.Expression | None

    @property
    def all_columns(self) -> pa.Schema:
        """All columns of files and partitions, which a filter can reference."""
        return pa.schema([*self.stored, *self.partitions.schema])

    def needed_columns(self) -> pa.Schema:
        """The columns of a block plus those that only the filter needs."""
        if self.filter is None:
            return self.schema
        columns = self.all_columns
        return with_filter_columns(self.schema, columns, filter_columns(self.filter, columns))

    def stored_of(self, schema: pa.Schema) -> list[pa.Field[Any]]:
        """The columns of a schema that are read from files, and not from their paths."""
        from_paths = self.partitions.schema.names
        return [field for field in schema if field.name not in from_paths]

    def keep_rows(self, table: pa.Table, locate: Locate) -> pa.Table:
        """Select the block's columns from the rows that pass the filter."""
        if self.filter is None:
            return table.select(self.schema.names)
        return cast_table(take_rows(table, kept_places(self.filter, table)), self.schema, locate)

    def origin_of(self, groups: RowGroups, address: BlockAddress) -> str:
        """What errors name: the block, or the row groups of a single file where a block has several."""
        return address.origin if len(address.locator) == 1 else groups.locate(self.files.name(groups.path))


def join_addresses(files: Files, addresses: Sequence[BlockAddress]) -> BlockAddress | None:
    """Join blocks of files to one; None for pieces of row groups, which are large."""
    locators = list(chain.from_iterable(address.locator for address in addresses))
    if any(groups.is_cut for groups in locators):
        return None
    joined: list[RowGroups] = []
    for groups in locators:
        if joined and _is_adjacent(joined[-1], groups):
            joined[-1] = replace(joined[-1], stop=groups.stop)
        else:
            joined.append(groups)
    first, last = addresses[0], addresses[-1]
    origin = f"{first.origin} to {last.origin}"
    if len(joined) == 1:
        origin = joined[0].locate(files.name(joined[0].path))
    return BlockAddress(origin, tuple(joined), first.number)


def _is_adjacent(before: RowGroups, groups: RowGroups) -> bool:
    """Whether row groups follow others of their file, so that one locator can name both."""
    # those of a table can lack deleted rows
    is_plain = type(before) is type(groups) is RowGroups
    return (
        is_plain
        and before.stop == groups.start
        and (before.path, before.footer_hash) == (groups.path, groups.footer_hash)
    )


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Concatenate one or more tables; a single one stays as it is."""
    first, *others = tables
    return pa.concat_tables([first, *others]) if others else first


class FileFormat(Protocol):
    """How to read files of one format: a frozen, picklable value with the user's options."""

    @property
    def name(self) -> str:
        """The format's name in messages: ``"Parquet"``."""

    @property
    def options(self) -> str:
        """The options that affect rows or columns, as text that stays the same across releases (saved manifests)."""

    @property
    def rows_known(self) -> bool:
        """Whether inspecting a file yields exact row counts of its row groups."""

    @property
    def joins_files(self) -> bool:
        """Whether a block can span adjacent files, not only adjacent row groups of one file."""

    @property
    def cut_sizes(self) -> CutSizes | None:
        """Which row groups are cut into several blocks; None if the reader reads whole row groups only."""

    def reader(self, reading: FileReading) -> BlockReader:
        """Make a block reader; each locator is a tuple of ``RowGroups``, one per file of the block."""


class Format(FileFormat, Protocol):
    """A format whose files are inspected one by one."""

    def look(self, files: Files, path: str) -> Fragment:
        """Inspect a file, reading no more of it than planning needs; several threads call this."""


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


@runtime_checkable
class IndexedFormat(FileFormat, Protocol):
    """A format whose directories have an index, which names the files to read and states what they hold."""

    def read_index(self, files: Files, versions: Mapping[str, Version]) -> Mapping[str, FragmentFacts]:
        """The facts of the files to read, by path and in order; ``versions`` has all files that were listed."""


@runtime_checkable
class UnifyingFormat(Format, Protocol):
    """A format whose files declare no types, so that inferred types unify more freely than Arrow's."""

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        """Merge the schemas of files, given as (path, schema); see ``windrow.io.catalog.schemas.merge_schemas``."""
