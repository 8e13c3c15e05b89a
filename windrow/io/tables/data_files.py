"""The data files of a table's snapshot: what its log states of each, how each is read, and which match a filter."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.io.catalog.filters import check_filter
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.storage.file_versions import RowGroups
from windrow.io.storage.filesystems import Files
from windrow.io.tables.column_mapping import TableColumns, plain_schema
from windrow.io.tables.library_errors import plain_error

if TYPE_CHECKING:
    import pyarrow.compute as pc

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TableFiles(Files):
    """The data files of a snapshot, below one root.

    ``display_root`` is the root as the user wrote it, empty if it equals the path. ``snapshot`` describes the
    table and snapshot in errors. ``secrets`` are redacted from messages.
    """

    display_root: str = ""
    snapshot: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def url(self) -> str:
        return self.display_root or super().url

    @contextmanager
    def mapped_errors(self, what: str, *, filters: bool = False) -> Iterator[None]:
        """Map errors to SourceError; a missing file has most likely been vacuumed."""
        with super().mapped_errors(what, filters=filters):
            try:
                yield
            except FileNotFoundError as error:
                fix = (
                    f"{self.snapshot} has lost it, as when files of old snapshots are vacuumed or expire: read "
                    "the table again, and keep snapshots for as long as they are read"
                )
                raise self.error(f"{what}: the file is missing", error, fix) from self.cause(error)

    def error(self, what: str, error: BaseException, fix: str) -> SourceError:
        return super().error(what, plain_error(error), fix)

    def _secrets(self) -> tuple[str, ...]:
        return (*super()._secrets(), *self.secrets)


@dataclass(frozen=True, eq=False)
class LoggedFile:
    """A data file of a snapshot, as the table's log describes it.

    ``path`` is relative to the root. ``constants`` are columns with one value for all rows, stated in the
    log. ``deleted`` are the positions of deleted rows, ascending; None if there are none.
    """

    path: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    deleted: Ints | None = None


@dataclass(frozen=True)
class TableRowGroups(RowGroups):
    """The locator of a block of a table."""

    # columns that are not read, with their value: partition columns, and columns that the file lacks
    constants: tuple[tuple[str, Any], ...] = ()
    # columns and their physical names, where these differ
    names: tuple[tuple[str, str], ...] = ()
    # columns that the file stores in another type, on which Arrow cannot always evaluate a filter
    cast: tuple[str, ...] = ()
    # stored rows, including deleted ones; 0 if no row is deleted and no name differs
    rows: int = 0
    # a zlib-compressed bitmap of deleted rows; empty if there are none
    deleted: bytes = b""

    @property
    def plain(self) -> bool:
        """Whether its rows are read as stored."""
        return not self.names and not self.deleted

    def live_rows(self) -> Ints:
        """The positions, within these row groups, of the rows that are not deleted."""
        bits = np.frombuffer(zlib.decompress(self.deleted), np.uint8)
        return np.flatnonzero(np.unpackbits(bits, count=self.rows) == 0)


@dataclass(frozen=True, eq=False)
class FittedFile:
    """How to read a data file, once its footer is known; the first three fields as in `TableRowGroups`.

    ``ends``, (row groups,), are cumulative numbers of stored rows; ``deleted`` the positions of deleted rows.
    """

    constants: tuple[tuple[str, Any], ...]
    names: tuple[tuple[str, str], ...]
    cast: tuple[str, ...]
    ends: Ints
    deleted: Ints

    def locate(self, groups: RowGroups) -> TableRowGroups:
        """Make the locator of some of its row groups."""
        plain = TableRowGroups(**vars(groups), constants=self.constants, names=self.names, cast=self.cast)
        if plain.plain and not len(self.deleted):
            return plain
        first = int(self.ends[groups.start - 1]) if groups.start else 0
        rows = int(self.ends[groups.stop - 1]) - first
        begin, end = np.searchsorted(self.deleted, (first, first + rows))
        is_deleted = np.zeros(rows, np.bool_)
        is_deleted[self.deleted[begin:end] - first] = True
        packed = zlib.compress(np.packbits(is_deleted).tobytes(), 1) if end > begin else b""
        return replace(plain, rows=rows, deleted=packed)


def fit_file(
    facts: FragmentFacts, logged: LoggedFile, columns: TableColumns, name: str
) -> tuple[FragmentFacts, FittedFile]:
    """Express a file's facts in the table's columns, without the deleted rows."""
    found = columns.find(facts.schema, name)
    stored = columns.stored
    types = {column.name: column.type for column in facts.schema}
    absent = {
        column.name: logged.constants.get(column.name, columns.defaults.get(column.name))
        for column in stored
        if column.name not in found
    }
    partitions = {column.name: logged.constants.get(column.name) for column in columns.partitions}
    ends = np.cumsum(facts.rows, dtype=np.int64)
    deleted = np.zeros(0, np.int64) if logged.deleted is None else logged.deleted
    fitted = FittedFile(
        tuple({**partitions, **absent}.items()),
        tuple((ours, theirs) for ours, theirs in found.items() if ours != theirs),
        tuple(ours for ours, theirs in found.items() if types[theirs] != stored.field(ours).type),
        ends,
        deleted,
    )
    rows = np.array(facts.rows, np.int64) - np.diff(np.searchsorted(deleted, ends), prepend=0)
    nothing = [0] * len(facts.rows)
    variable = {
        column.name: facts.variable.get(found.get(column.name, ""), (nothing, nothing))
        for column in stored
        if fixed_bits(column.type) is None
    }
    nulls = {
        column.name: _count_nulls(facts.nulls[found[column.name]], deleted)
        if column.name in found
        else int(rows.sum()) * (absent[column.name] is None)
        for column in stored
    }
    return FragmentFacts(
        stored, rows.tolist(), facts.encoded_bytes, variable, nulls, codecs=facts.codecs
    ), fitted


def _count_nulls(nulls: int | None, deleted: Ints) -> int | None:
    """A column's nulls; with deleted rows, only zero stays known."""
    return None if nulls and len(deleted) else nulls


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of a column in one file, each None if unknown: bounds of what is not null, nulls, values."""

    min: Any = None
    max: Any = None
    nulls: int | None = None
    rows: int | None = None


def supports_pruning(kind: pa.DataType) -> bool:
    """Whether pruning uses statistics of a type; not of floats, whose statistics ignore NaN."""
    return any(check(kind) for check in (pt.is_integer, pt.is_date32, pt.is_timestamp, pt.is_string))


def prune_files(
    filter: pc.Expression | None,
    columns: TableColumns,
    files: int,
    find_statistics: Callable[[pa.Schema], Sequence[Mapping[str, ColumnStatistics]]],
) -> list[int]:
    """The indices of files that can hold rows matching a filter, which has to fit the columns.

    ``find_statistics`` gets the columns as files are read, and returns (files,) statistics by column.
    """
    if filter is None:
        return list(range(files))
    schema = plain_schema(columns.schema)
    check_filter(filter, schema)
    return np.flatnonzero(candidate_files(filter, schema, find_statistics(schema))).tolist()


def candidate_files(
    expression: pc.Expression, schema: pa.Schema, files: Sequence[Mapping[str, ColumnStatistics]]
) -> NDArray[np.bool_]:
    """(files,) whether each can hold a row for which an expression is true; reads no file.

    Arrow simplifies the expression by a guarantee per fragment, as it does for Parquet statistics.
    """
    import pyarrow.dataset as ds
    import pyarrow.fs as pa_fs

    format, nowhere = ds.ParquetFileFormat(), pa_fs.LocalFileSystem()
    fragments = [
        format.make_fragment(str(place), nowhere, partition_expression=_guarantee(schema, statistics))
        for place, statistics in enumerate(files)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, format, nowhere)
    kept = np.zeros(len(files), np.bool_)
    kept[[int(fragment.path) for fragment in dataset.get_fragments(filter=expression)]] = True
    return kept


def _guarantee(schema: pa.Schema, columns: Mapping[str, ColumnStatistics]) -> pc.Expression:
    import pyarrow.compute as pc

    guarantee = pc.scalar(True)
    for name, statistics in columns.items():
        for condition in _conditions(pc.field(name), schema.field(name).type, statistics):
            guarantee = guarantee & condition
    return guarantee


def _conditions(
    column: pc.Expression, kind: pa.DataType, statistics: ColumnStatistics
) -> list[pc.Expression]:
    if statistics.nulls is not None and statistics.nulls == statistics.rows:
        return [column.is_null()]
    conditions = []
    if statistics.min is not None:
        conditions.append(column >= pa.scalar(statistics.min, kind))
    if statistics.max is not None:
        conditions.append(column <= pa.scalar(statistics.max, kind))
    return conditions if statistics.nulls == 0 else [condition | column.is_null() for condition in conditions]
