"""What the log of a table says of a file, and what looking at the file adds to it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.storage.verified_files import RowGroups
from windrow.io.tables.column_mapping import TableColumns

__all__ = ["FittedFile", "LoggedFile", "TableRowGroups", "fit_file"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LoggedFile:
    """A data file of a snapshot, as the table's log tells it.

    Attributes
    ----------
    path
        Below the root.
    constants
        The columns whose value is the same in all rows, and stands in the log.
    deleted
        The positions of rows that are deleted, ascending; None for none.
    """

    path: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    deleted: Ints | None = None


@dataclass(frozen=True)
class TableRowGroups(RowGroups):
    """The locator of a block of a table.

    Attributes
    ----------
    constants
        Columns that are not read, and their value: partitions, and what the file lacks.
    names
        Columns, and what the file calls them, where these differ.
    cast
        Columns that the file has as another type, which Arrow may not compare as it is.
    rows
        Rows that are stored, deleted ones included; 0 where none is and no name differs.
    deleted
        A bit for each row, packed: whether it is deleted; empty where none is.
    """

    constants: tuple[tuple[str, Any], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    cast: tuple[str, ...] = ()
    rows: int = 0
    deleted: bytes = b""

    @property
    def plain(self) -> bool:
        """Whether its rows are read as they are stored."""
        return not self.names and not self.deleted

    def live_rows(self) -> Ints:
        """The positions, in these row groups, of rows that are not deleted."""
        bits = np.frombuffer(zlib.decompress(self.deleted), np.uint8)
        return np.flatnonzero(np.unpackbits(bits, count=self.rows) == 0)


@dataclass(frozen=True, eq=False)
class FittedFile:
    """A file of a table, once its footer has been looked at.

    Attributes
    ----------
    constants, names, cast
        As in `TableRowGroups`.
    ends
        (row groups,) rows that are stored up to and including each.
    deleted
        The positions of deleted rows, ascending.
    """

    constants: tuple[tuple[str, Any], ...]
    names: tuple[tuple[str, str], ...]
    cast: tuple[str, ...]
    ends: Ints
    deleted: Ints

    def locate(self, groups: RowGroups) -> TableRowGroups:
        """The locator of some of its row groups."""
        plain = TableRowGroups(**vars(groups), constants=self.constants, names=self.names, cast=self.cast)
        if plain.plain and not len(self.deleted):
            return plain
        first = int(self.ends[groups.start - 1]) if groups.start else 0
        rows = int(self.ends[groups.stop - 1]) - first
        begin, end = np.searchsorted(self.deleted, (first, first + rows))
        gone = np.zeros(rows, np.bool_)
        gone[self.deleted[begin:end] - first] = True
        packed = zlib.compress(np.packbits(gone).tobytes(), 1) if end > begin else b""
        return replace(plain, rows=rows, deleted=packed)


def fit_file(
    facts: FragmentFacts, logged: LoggedFile, columns: TableColumns, name: str
) -> tuple[FragmentFacts, FittedFile]:
    """Put a file's facts in terms of the table's columns, without the rows that are deleted.

    Raises
    ------
    SourceError
        If the file does not fit the table.
    """
    found = columns.find(facts.schema, name)
    stored = columns.stored
    types = {column.name: column.type for column in facts.schema}
    absent = {
        wanted.name: logged.constants.get(wanted.name, columns.defaults.get(wanted.name))
        for wanted in stored
        if wanted.name not in found
    }
    told = {wanted.name: logged.constants.get(wanted.name) for wanted in columns.partitions}
    ends = np.cumsum(facts.rows, dtype=np.int64)
    deleted = np.zeros(0, np.int64) if logged.deleted is None else logged.deleted
    fitted = FittedFile(
        tuple({**told, **absent}.items()),
        tuple((ours, theirs) for ours, theirs in found.items() if ours != theirs),
        tuple(ours for ours, theirs in found.items() if types[theirs] != stored.field(ours).type),
        ends,
        deleted,
    )
    rows = np.array(facts.rows, np.int64) - np.diff(np.searchsorted(deleted, ends), prepend=0)
    nothing = [0] * len(facts.rows)
    variable = {
        wanted.name: facts.variable.get(found.get(wanted.name, ""), (nothing, nothing))
        for wanted in stored
        if fixed_bits(wanted.type) is None
    }
    nulls = {
        wanted.name: _count_nulls(facts.nulls[found[wanted.name]], deleted)
        if wanted.name in found
        else int(rows.sum()) * (absent[wanted.name] is None)
        for wanted in stored
    }
    return FragmentFacts(stored, rows.tolist(), facts.encoded_bytes, variable, nulls), fitted


def _count_nulls(stated: int | None, deleted: Ints) -> int | None:
    """Nulls of a column; where some rows are deleted, only "none" can be told."""
    return None if stated and len(deleted) else stated
