"""Open Lance tables: the fragments of a version are split into row ranges, which are the blocks; and their reader."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.chosen_rows import take_rows
from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.core.source import BlockAddress
from windrow.core.tracebacks import trims_traceback
from windrow.io.catalog.column_selection import select_columns
from windrow.io.catalog.filters import check_filter, digest_filter, filter_columns, kept_places
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.safe_casts import cast_table
from windrow.io.catalog.value_sizes import estimate_blocks, fixed_bits, measure_values
from windrow.io.storage.credentials import check_options, find_secrets, redact
from windrow.io.tables.library_errors import check_time_zone, mapped_errors

if TYPE_CHECKING:
    import pyarrow.compute as pc

# taking one row costs about as much as scanning this many
_TAKE_COST_ROWS = 16
# an argument of scanners, and what marks a column of blobs
_BLOBS, _BLOB_MARK = "blob_handling", b"lance-encoding:blob"
_FIX = "check the path, the version, the credentials and storage_options="
_FIXES = {
    "not found": "files of old versions are lost once the table was cleaned up: read the table again, and keep "
    "versions for as long as they are read"
}
LanceVersion = int | str | datetime.datetime
Ints = NDArray[np.int64]
# sample size for estimating the widths of variable-width values
_SAMPLED_FRAGMENTS, _SAMPLED_ROWS = 4, 4


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
def open_version(table: LanceTable) -> Any:
    """Open a version with the library, once in a process."""
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
        columns=list(columns), offset=start or None, limit=rows, **_blobs_as_bytes(fragment.scanner)
    )
    return scanner.to_table()


def _blobs_as_bytes(scanner: Callable[..., Any]) -> dict[str, str]:
    """The option with which a scanner returns blobs as bytes; none before Lance 2, which returns their places."""
    known = inspect.signature(scanner).parameters
    return {_BLOBS: "all_binary"} if _BLOBS in known else {}


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
        number, start, rows = address.locator
        with lance_errors(f"{address.origin}: cannot be read", self.table.secrets):
            fragment = open_version(self.table).get_fragment(number)
            if fragment is None:
                raise SourceError(f"{address.origin}: there is no such fragment; read the table again")
            if self.filter is None:
                return self._conform(self._scan(fragment, self.schema.names, start, rows), address.origin)
            return self._conform(self._read_filtered(fragment, start, rows), address.origin)

    def _read_filtered(self, fragment: Any, start: int, rows: int) -> pa.Table:
        first = self._scan(fragment, self.needed, start, rows)
        kept = kept_places(self.filter, first)
        rest = [name for name in self.schema.names if name not in self.needed]
        table = take_rows(first, kept)
        if rest and len(kept):
            few = self.can_take and len(kept) * _TAKE_COST_ROWS < rows
            others = (
                fragment.take((kept + start).tolist(), columns=rest)
                if few
                else take_rows(self._scan(fragment, rest, start, rows), kept)
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


@trims_traceback
def open_lance(
    uri: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None,
    filter: pc.Expression | None,
    version: LanceVersion | None,
    storage_options: Mapping[str, str] | None,
    target_block_bytes: int,
) -> ListedSource:
    """Resolve a table to the fragments of one version."""
    library = require("lance", "lance", "read_lance()")
    options = check_options(storage_options)
    path = _check_uri(uri)
    display_name = redact(path, find_secrets(options))
    with lance_errors(f"the Lance table {display_name} cannot be opened", find_secrets(options)):
        dataset = _load(library, path, version, options)
        digest = LanceTable.digest_files(dataset)
        table = LanceTable(path, int(dataset.version), digest, tuple(sorted(options.items())))
        table_schema = _schema(dataset)
        schema = select_columns(table_schema, columns)
        reader = _plan_reader(table, dataset, table_schema, schema, filter)
        fragments = [(one.fragment_id, one.count_rows()) for one in dataset.get_fragments()]
        widths = _measure(dataset, table_schema)
    ranges = _cut(fragments, sum(widths.values()), target_block_bytes)
    columns_text = "\n".join(f"{column.name}: {column.type}" for column in table_schema)
    name = f"Lance table({display_name!r}: version {table.version})"
    rows = np.array([count for _, _, count in ranges], np.int64)
    return ListedSource(
        name=name,
        schema=schema,
        blocks=estimate_blocks(rows, widths, schema, rows_known=filter is None),
        block_addresses=tuple(_address(display_name, *one) for one in ranges),
        reader=reader,
        fingerprint=hashlib.sha256(f"Lance\0{digest}\0{table.version}\0{columns_text}".encode()).hexdigest(),
        null_counts={column.name: None if column.nullable else 0 for column in schema},
        block_bytes=target_block_bytes,
        fragments=len(fragments),
        filter_digest="" if filter is None else digest_filter(filter),
        reads=(path,),
        # a filter reads its columns in any case
        counting_reader=None
        if filter is None
        else replace(reader, schema=pa.schema([table_schema.field(reader.needed[0])])),
    )


def _check_uri(uri: Any) -> str:
    if not isinstance(uri, (str, os.PathLike)) or not os.fspath(uri):
        raise PlanError(f"uri={uri!r}: give the table's path or URL")
    path = os.fspath(uri)
    return path if "://" in path else os.path.abspath(path)


def _load(library: Any, path: str, version: LanceVersion | None, options: dict[str, str]) -> Any:
    if isinstance(version, bool) or not isinstance(version, (int, str, datetime.datetime, type(None))):
        raise PlanError(f"version={version!r}: give a number, the name of a tag, or a time")
    if not isinstance(version, datetime.datetime):
        return library.dataset(path, version=version, storage_options=options or None)
    check_time_zone("version", version)
    # the library compares naive times in the local time zone
    local = version.astimezone().replace(tzinfo=None)
    return library.dataset(path, asof=local, storage_options=options or None)


def _schema(dataset: Any) -> pa.Schema:
    """The columns as read: blobs as bytes, without storage metadata."""
    options = _blobs_as_bytes(dataset.scanner)
    for column in dataset.schema:
        if not options and _BLOB_MARK in (column.metadata or {}):
            raise NotImplementedError(
                f"blobs, as in column {column.name!r}, are not supported before Lance 2.0"
            )
    projected = dataset.scanner(**options).projected_schema
    return pa.schema([pa.field(column.name, column.type, column.nullable) for column in projected])


def _plan_reader(
    table: LanceTable, dataset: Any, table_schema: pa.Schema, schema: pa.Schema, filter: pc.Expression | None
) -> LanceReader:
    if filter is None:
        return LanceReader(table, schema)
    check_filter(filter, table_schema)
    needed = filter_columns(filter, table_schema)
    names = table_schema.names if needed is None else needed
    stored = dataset.scanner().projected_schema
    can_take = all(stored.field(column.name).type == column.type for column in schema)
    return LanceReader(table, schema, filter, tuple(names or table_schema.names[:1]), can_take)


def _measure(dataset: Any, table_schema: pa.Schema) -> dict[str, float]:
    """The in-memory bytes per value of each column: exact, or the mean of a sample."""
    varying = [column.name for column in table_schema if fixed_bits(column.type) is None]
    fragments = dataset.get_fragments() if varying else []
    count = min(len(fragments), _SAMPLED_FRAGMENTS)
    sampled = (fragments[place * len(fragments) // count] for place in range(count))
    tables = [scan_rows(fragment, varying, 0, _SAMPLED_ROWS) for fragment in sampled]
    sample = pa.concat_tables(tables) if tables else None
    return {column.name: measure_values(column.name, column.type, sample) for column in table_schema}


def _cut(
    fragments: Sequence[tuple[int, int]], row_bytes: float, target_bytes: int
) -> list[tuple[int, int, int]]:
    """Split each fragment into ranges of about equal length: (fragment id, first row, rows)."""
    max_rows = max(1, int(target_bytes / max(row_bytes, 1 / 8)))
    ranges = []
    for number, rows in fragments:
        count = -(-rows // max_rows)
        edges = [rows * place // count for place in range(count + 1)] if count else []
        ranges += [(number, start, stop - start) for start, stop in pairwise(edges)]
    return ranges


def _address(display_name: str, number: int, start: int, rows: int) -> BlockAddress:
    return BlockAddress(
        f"{display_name}, fragment {number}, rows {start}-{start + rows - 1}", (number, start, rows)
    )
