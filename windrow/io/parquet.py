"""The Parquet reader: one block, one thread, exactly the source's schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.core.source import BlockAddress, BlockPart
from windrow.io import decoding
from windrow.io.decoding import StoredFooter
from windrow.io.filesystems import Files
from windrow.io.footer_cache import FooterCache
from windrow.io.footers import read_footer
from windrow.io.partitions import Partitions

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["ParquetReader", "RowGroups"]

# Blocks of a window are read in stored order by several tasks at once, each in a file of its own.
# A footer of very many row groups has megabytes, and takes three times as much when parsed.
_FOOTERS = FooterCache(max_footers=64, max_bytes=16 * 2**20)
# Columns of a part should fit the cache; smaller parts cost more Python per row.
_PART_BYTES = 8 * 2**20


@dataclass(frozen=True)
class RowGroups:
    """The locator of a block: row groups ``start`` to ``stop`` of one file as it was listed."""

    path: str
    size_bytes: int
    footer_hash: bytes
    start: int
    stop: int


@dataclass(frozen=True)
class ParquetReader:
    """Reads blocks of Parquet files.

    Attributes
    ----------
    files
        Where the files are.
    schema
        The schema of every block: selected columns, of files and of partitions.
    stored
        The schema of the files, all columns unified; what a filter sees, with partitions.
    partitions
        The columns that come from paths.
    filter
        Keeps rows for which it is true; None keeps all.
    """

    files: Files
    schema: pa.Schema
    stored: pa.Schema
    partitions: Partitions
    filter: pc.Expression | None

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, single-threaded, rows in stored order.

        Raises
        ------
        SourceError
            If the file is gone, changed since it was listed, damaged, or does not
            fit the schema.
        """
        groups: RowGroups = address.locator
        with self.mapped_errors(groups, address.origin), self._open(groups, address.origin) as file:
            stored = self._parquet(file, groups, address.origin)
            if self.filter is not None:
                return self.conform(self._scan(file, groups), groups.path, self.schema)
            # A name with dots also names a nested field, so this may read more, never less.
            table = stored.read_row_groups(
                list(range(groups.start, groups.stop)), columns=self._stored_names(), use_threads=False
            )
            return self.conform(table, groups.path, self.schema)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part: a few row groups, each column when it is asked for.

        Remote files are read in one go, since their ranges are fetched together.
        """
        if self.filter is not None or not self.files.local:
            yield self.read(address)
            return
        groups: RowGroups = address.locator
        with ExitStack() as open_files:
            with self.mapped_errors(groups, address.origin):
                file = open_files.enter_context(self._open(groups, address.origin))
                stored = self._parquet(file, groups, address.origin)
            for some in _join_groups(stored.metadata, groups):
                yield _StoredPart(self, stored, file, groups, some, address.origin)

    @contextmanager
    def _open(self, groups: RowGroups, origin: str) -> Iterator[pa.NativeFile]:
        with self.files.open(groups.path) as file:
            if file.size() != groups.size_bytes:
                raise _changed(origin, f"{groups.size_bytes} bytes then, {file.size()} now")
            yield file

    def _parquet(self, file: pa.NativeFile, groups: RowGroups, origin: str) -> Any:
        import pyarrow.parquet as pq

        metadata = self.footer(groups, origin).metadata
        return pq.ParquetFile(
            file, metadata=metadata, pre_buffer=not self.files.local, page_checksum_verification=True
        )

    def footer(self, groups: RowGroups, origin: str) -> StoredFooter:
        """The footer of a block's file, which must be the one that was listed."""
        # a local file that was written anew shows its footer again; elsewhere its size must do
        stamp = self.files.stamp(groups.path) if self.files.local else b""
        read = partial(self._read_footer, groups, origin)
        footer: StoredFooter = _FOOTERS.get(groups.footer_hash + stamp, read)
        return footer

    def _read_footer(self, groups: RowGroups, origin: str) -> StoredFooter:
        footer = read_footer(self.files, groups.path, origin)
        if footer.digest != groups.footer_hash:
            raise _changed(origin, "another footer")
        return StoredFooter(footer.metadata)

    def _scan(self, file: pa.NativeFile, groups: RowGroups) -> pa.Table:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        options = ds.ParquetFragmentScanOptions(
            pre_buffer=not self.files.local, page_checksum_verification=True
        )
        fragment = ds.ParquetFileFormat(default_fragment_scan_options=options).make_fragment(
            file,
            partition_expression=self.partitions.expression(groups.path),
            row_groups=list(range(groups.start, groups.stop)),
        )
        return fragment.to_table(
            schema=pa.schema([*self.stored, *self.partitions.schema]),
            columns={name: pc.field(name) for name in self._stored_names()},
            filter=self.filter,
            use_threads=False,
        )

    def _stored_names(self) -> list[str]:
        partitions = set(self.partitions.schema.names)
        return [name for name in self.schema.names if name not in partitions]

    def conform(self, table: pa.Table, path: str, schema: pa.Schema) -> pa.Table:
        """Give what a file holds the types of ``schema``, and partition columns their values."""
        values = dict(zip(self.partitions.schema.names, self.partitions.values(path), strict=True))
        columns = [
            _constant(values[wanted.name], wanted.type, table.num_rows)
            if wanted.name in values
            else _cast(table.column(wanted.name), wanted)
            for wanted in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    @contextmanager
    def mapped_errors(self, groups: RowGroups, origin: str) -> Iterator[None]:
        """Turn what goes wrong while reading into a SourceError that names the block."""
        try:
            yield
        except (SourceError, MemoryError):
            raise
        except FileNotFoundError as error:
            remedy = "restore the file, or list the dataset again"
            raise self.files.error(f"{origin}: the file is gone", error, remedy) from self.files.cause(error)
        except PermissionError as error:
            remedy = "grant read permission"
            raise self.files.error(f"{origin}: may not be read", error, remedy) from self.files.cause(error)
        except Exception as error:
            remedy = (
                "it is damaged, or the connection failed: try again, write the file anew, or leave it out"
            )
            raise self.files.error(f"{origin}: cannot be read", error, remedy) from self.files.cause(error)


@dataclass(frozen=True, eq=False)
class _StoredPart:
    """A few row groups of an open file, decoded column by column."""

    reader: ParquetReader
    stored: Any
    file: pa.NativeFile
    groups: RowGroups
    numbers: tuple[int, ...]
    origin: str

    @property
    def num_rows(self) -> int:
        return sum(self.stored.metadata.row_group(number).num_rows for number in self.numbers)

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    def select(self, columns: list[int]) -> pa.Table:
        schema = pa.schema([self.schema.field(number) for number in columns])
        names = [name for name in schema.names if name not in self.reader.partitions.schema.names]
        with self.reader.mapped_errors(self.groups, self.origin):
            table = self.stored.read_row_groups(list(self.numbers), columns=names, use_threads=False)
            return self.reader.conform(table, self.groups.path, schema)

    def scatter(self, column: int, targets: NDArray[np.uint32], out: NDArray[np.uint8]) -> bool:
        if decoding.LIBRARY is None:
            return False
        field = self.schema.field(column)
        footer = self.reader.footer(self.groups, self.origin)
        chunks = [footer.chunk(number, field.name, field.type) for number in self.numbers]
        if field.name in self.reader.partitions.schema.names or None in chunks:
            return False
        if sum(chunk.rows for chunk in chunks if chunk is not None) != len(targets):
            return False
        end = 0
        with self.reader.mapped_errors(self.groups, self.origin):
            for chunk in chunks:
                assert chunk is not None, "there is no None among them"
                start, end = end, end + chunk.rows
                if not decoding.decode(self.file, chunk, targets[start:end], out):
                    return False
        return True


def _join_groups(metadata: Any, groups: RowGroups) -> Iterator[tuple[int, ...]]:
    """Join neighbouring row groups until they are worth a part."""
    joined: list[int] = []
    joined_bytes = 0
    for number in range(groups.start, groups.stop):
        joined.append(number)
        joined_bytes += metadata.row_group(number).total_byte_size
        if joined_bytes >= _PART_BYTES:
            yield tuple(joined)
            joined, joined_bytes = [], 0
    if joined:
        yield tuple(joined)


def _changed(origin: str, how: str) -> SourceError:
    return SourceError(
        f"{origin}: the file has changed since it was listed ({how}); list the dataset again "
        f"and make its manifest anew, or restore the file"
    )


def _constant(value: Any, kind: pa.DataType, rows: int) -> pa.ChunkedArray[Any]:
    return pa.chunked_array([pa.repeat(pa.scalar(value, kind), rows)])


def _cast(column: pa.ChunkedArray[Any], wanted: pa.Field[Any]) -> pa.ChunkedArray[Any]:
    if column.type == wanted.type:
        return column
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), wanted.type)])
    try:
        return column.cast(wanted.type)
    except pa.ArrowException as error:
        raise type(error)(f"column {wanted.name!r} from {column.type} to {wanted.type}: {error}") from error
