"""A source with an explicit list of blocks, for data that is not files under one root."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.source import BlockAddress, BlockReader, BlockTable, RowOrigin, SourceIdentity
from windrow.io.catalog.row_id_column import RowIdSource
from windrow.io.catalog.row_ids import count_rows

__all__ = ["ListedSource"]

_DIGEST_DIGITS = 16


@dataclass(frozen=True, eq=False)
class ListedSource:
    """An explicit list of blocks as a ``windrow.core.source.Source``.

    Attributes
    ----------
    name
        The data's name in messages: ``"from_pandas"``, ``"lance table trips"``.
    schema
        The schema of every block that the reader returns.
    blocks
        All blocks in stored order.
    block_addresses
        (blocks,) the address of each.
    reader
        Reads the blocks.
    fingerprint
        A digest of the data, independent of its location.
    null_counts
        Nulls by column; None where they have not been counted.
    block_bytes
        The target size of blocks.
    fragments
        Number of files, record batches or objects that blocks are cut from.
    filter_digest
        A digest of the filter that the reader applies; empty without one.
    reads
        The files and folders that the reader needs, which a write must not replace.
    """

    name: str
    schema: pa.Schema
    blocks: BlockTable
    block_addresses: tuple[BlockAddress, ...]
    reader: BlockReader
    fingerprint: str
    null_counts: Mapping[str, int | None]
    block_bytes: int
    fragments: int
    filter_digest: str = ""
    reads: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}: {self.describe()}"

    def identity(self, files: int | None = None) -> SourceIdentity:
        """What the row order depends on; a listed source cannot have been appended to.

        Raises
        ------
        PlanError
            If ``files`` is not the number of fragments.
        """
        if files not in (None, self.fragments):
            raise PlanError(f"{self.name} cannot identify its first {files} fragments separately")
        schema = "\n".join(f"{field.name}: {field.type}" for field in self.schema)
        return SourceIdentity(
            fingerprint=self.fingerprint,
            schema=hashlib.sha256(schema.encode()).hexdigest()[:_DIGEST_DIGITS],
            files=self.fragments,
            rows=int(self.blocks.rows.sum()),
            block_bytes=self.block_bytes,
            filter=self.filter_digest,
        )

    @property
    def contents(self) -> str:
        """A digest of the content of each block: the data, columns, filter, and block boundaries."""
        digest = hashlib.sha256()
        parts = (self.fingerprint.encode(), self.filter_digest.encode(), self.schema.serialize().to_pybytes())
        for part in (*parts, self.blocks.rows.tobytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        """The addresses of some blocks, by their number in stored order."""
        return tuple(self.block_addresses[block] for block in blocks)

    def describe(self) -> str:
        """One line for ``explain()``."""
        return f"{self.fragments:,} fragments, {len(self.blocks.rows):,} blocks; {len(self.schema)} columns"

    @property
    def row_filter(self) -> None:
        """None: row ids count only the rows that the reader delivers."""
        return None

    @property
    def whole_reader(self) -> BlockReader:
        """The reader of all rows."""
        return self.reader

    @cached_property
    def first_row_ids(self) -> NDArray[np.int64]:
        """(blocks,) the row id of the first row of each."""
        rows = self.count_blocks()
        return np.cumsum(rows) - rows

    def count_blocks(self) -> NDArray[np.int64]:
        """(blocks,) the rows that each block delivers; reads the blocks if their rows are unknown."""
        if self.blocks.rows_known:
            return self.blocks.rows
        return count_rows(self.reader.read, self.block_addresses)

    def row_numbers(self, block: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows,) the row ids of rows that a block delivers."""
        return rows + self.first_row_ids[block]

    def row_lineage(self, numbers: NDArray[np.int64]) -> list[RowOrigin]:
        """Where the rows of some row ids are stored: the block's name, its index, and the row's index in it."""
        blocks = np.searchsorted(self.first_row_ids, numbers, side="right") - 1
        rows = numbers - self.first_row_ids[blocks]
        return [
            RowOrigin(self.block_addresses[block].origin, block, row)
            for block, row in zip(blocks.tolist(), rows.tolist(), strict=True)
        ]

    def with_row_id(self, name: str) -> RowIdSource:
        """The same source with a last column of row ids."""
        return RowIdSource(self, name)
