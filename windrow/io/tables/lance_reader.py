"""The block reader of Lance tables: row ranges of fragments, with late materialization under a filter."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.core.empty_tables import empty_table
from windrow.core.errors import SourceError
from windrow.core.optional_dependencies import require
from windrow.core.source import BlockAddress
from windrow.io.catalog.filters import kept_places
from windrow.io.catalog.listed_source import WholeBlockReader
from windrow.io.catalog.safe_casts import cast_table
from windrow.io.storage.credentials import find_secrets
from windrow.io.tables.library_errors import mapped_errors

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["LanceReader", "LanceTable", "lance_errors", "scan_rows"]

# taking one row costs about as much as scanning this many
_TAKE_COST_ROWS = 16
_FIX = "check the path, the version, the credentials and storage_options="
_FIXES = {
    "not found": "files of old versions are lost once the table was cleaned up: read the table again, and keep "
    "versions for as long as they are read"
}


@dataclass(frozen=True)
class LanceTable:
    """One version of a table: small and picklable; each process opens it once.

    The URI and the storage options can contain credentials. ``digest`` is that of the version's file names,
    which are random: it detects another table at the same location.
    """

    uri: str = field(repr=False)
    version: int
    digest: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def open(self) -> Any:
        """Open the version with the library; cached for later blocks."""
        return _open(self)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials to redact from messages."""
        return find_secrets(dict(self.options))

    @staticmethod
    def digest_files(dataset: Any) -> str:
        """A digest of the names of a version's files, and of their row and deletion counts."""
        digest = hashlib.sha256()
        for fragment in dataset.get_fragments():
            known = fragment.metadata
            names = ",".join(file.path for file in fragment.data_files())
            digest.update(f"{known.id} {names} {known.physical_rows} {known.num_deletions}\n".encode())
        return digest.hexdigest()


@lru_cache(maxsize=16)
def _open(table: LanceTable) -> Any:
    library = require("lance", "lance", "read_lance()")
    dataset = library.dataset(table.uri, version=table.version, storage_options=dict(table.options) or None)
    if LanceTable.digest_files(dataset) != table.digest:
        raise SourceError(
            f"version {table.version} of the Lance table differs from the one that was listed: the table has been "
            "created again; read it again"
        )
    return dataset


def lance_errors(what: str, secrets: Sequence[str]) -> AbstractContextManager[None]:
    """Map Lance's errors to SourceError; only their text identifies a missing file."""
    return mapped_errors(what, secrets, _FIX, _FIXES)


def scan_rows(fragment: Any, columns: Sequence[str], start: int, rows: int) -> pa.Table:
    """Read columns of a range of a fragment's live rows, in stored order."""
    scanner = fragment.scanner(
        columns=list(columns), offset=start or None, limit=rows, blob_handling="all_binary"
    )
    return scanner.to_table()


@dataclass(frozen=True)
class LanceReader(WholeBlockReader):
    """Reads blocks of a Lance table; the locator of a block is (fragment id, first row, rows).

    With a filter, it first reads the columns that the filter needs, then the others for matching rows
    only: by a scan, or row by row if few rows match. ``needed`` are the columns that the filter needs;
    ``can_take`` states whether rows can be taken by index, which blob columns rule out.
    """

    table: LanceTable
    schema: pa.Schema
    filter: pc.Expression | None = None
    needed: tuple[str, ...] = ()
    can_take: bool = True

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, rows in stored order."""
        number, start, rows = address.locator
        with lance_errors(f"{address.origin}: cannot be read", self.table.secrets):
            fragment = self.table.open().get_fragment(number)
            if fragment is None:
                raise SourceError(f"{address.origin}: there is no such fragment; read the table again")
            if self.filter is None:
                return self._conform(self._scan(fragment, self.schema.names, start, rows), address.origin)
            return self._conform(self._read_filtered(fragment, start, rows), address.origin)

    def _read_filtered(self, fragment: Any, start: int, rows: int) -> pa.Table:
        first = self._scan(fragment, self.needed, start, rows)
        kept = kept_places(self.filter, first)
        rest = [name for name in self.schema.names if name not in self.needed]
        table = first.take(pa.array(kept))
        if rest and len(kept):
            few = self.can_take and len(kept) * _TAKE_COST_ROWS < rows
            others = (
                fragment.take((kept + start).tolist(), columns=rest)
                if few
                else self._scan(fragment, rest, start, rows).take(pa.array(kept))
            )
            for name in rest:
                table = table.append_column(others.schema.field(name), others[name])
        elif rest:
            return empty_table(self.schema)
        return table.select(self.schema.names)

    def _scan(self, fragment: Any, columns: Sequence[str], start: int, rows: int) -> pa.Table:
        table = scan_rows(fragment, columns, start, rows)
        if table.num_rows != rows:
            raise SourceError(f"{table.num_rows:,} rows read where {rows:,} are listed: read the table again")
        return table

    def _conform(self, table: pa.Table, origin: str) -> pa.Table:
        if table.schema.types == self.schema.types:
            return pa.Table.from_arrays(table.columns, schema=self.schema)
        return cast_table(table, self.schema, lambda row: origin)
