"""A source with an explicit list of blocks, for data that is not files under one root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.errors import PlanError
from windrow.core.source import (
    BlockAddress,
    BlockPart,
    BlockReader,
    BlockTable,
    RowOrigin,
    Source,
    SourceIdentity,
)
from windrow.core.terminal_text import format_count
from windrow.io.catalog.manifest import digest_parts, digest_schema
from windrow.io.catalog.row_ids import RowIdSource, count_rows


class WholeBlockReader:
    """A ``windrow.core.source.BlockReader`` whose blocks have one part each."""

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, rows in stored order."""
        raise NotImplementedError

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Yield the block as one part."""
        yield self.read(address)


if TYPE_CHECKING:
    _Source = Source
else:
    # at run time the properties of a protocol would hide the fields of its subclasses
    _Source = object


class NumberedRows(_Source):
    """The row ids of a source that has no files: the rank of each row that the reader delivers."""

    @property
    def row_filter(self) -> None:
        """None: row ids count only the rows that the reader delivers."""
        return None

    @property
    def whole_reader(self) -> BlockReader:
        return self.reader

    @cached_property
    def first_row_ids(self) -> NDArray[np.int64]:
        rows = self.count_blocks()
        return np.cumsum(rows) - rows

    def count_blocks(self) -> NDArray[np.int64]:
        if self.blocks.rows_known:
            return self.blocks.rows
        return count_rows(self.reader.read, self.addresses(range(len(self.blocks.rows))))

    def row_numbers(self, block: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows + self.first_row_ids[block]

    def row_lineage(self, numbers: NDArray[np.int64]) -> list[RowOrigin]:
        """The block's name, its index, and the row's index in it."""
        blocks = np.searchsorted(self.first_row_ids, numbers, side="right") - 1
        rows = numbers - self.first_row_ids[blocks]
        return [
            RowOrigin(address.origin, block, row)
            for address, block, row in zip(
                self.addresses(blocks.tolist()), blocks.tolist(), rows.tolist(), strict=True
            )
        ]

    def with_row_id(self, name: str) -> RowIdSource:
        return RowIdSource(self, name)


@dataclass(frozen=True, eq=False)
class ListedSource(NumberedRows):
    """An explicit list of blocks as a ``windrow.core.source.Source``."""

    name: str  # in messages: "from_pandas", "lance table trips"
    schema: pa.Schema
    blocks: BlockTable
    block_addresses: tuple[BlockAddress, ...]
    reader: BlockReader
    fingerprint: str  # a digest of the data, independent of its location
    null_counts: Mapping[str, int | None]  # None where they have not been counted
    block_bytes: int  # the target size of blocks
    fragments: int  # number of files, record batches or objects that blocks are cut from
    filter_digest: str = ""  # of the filter that the reader applies; empty without one
    reads: tuple[str, ...] = ()  # the files and folders that the reader needs, which a write must not replace
    stamps: str = ""  # a digest of versions of the data that the fingerprint leaves out
    counting_reader: BlockReader | None = None  # of the same rows, and few columns

    def __repr__(self) -> str:
        return f"{self.name}: {self.describe()}"

    def identity(self, files: int | None = None) -> SourceIdentity:
        """Raises a `PlanError` unless ``files`` is all fragments: a listed source cannot have been appended to."""
        if files not in (None, self.fragments):
            raise PlanError(f"{self.name} cannot identify its first {files} fragments separately")
        return SourceIdentity(
            fingerprint=self.fingerprint,
            schema=digest_schema(self.schema),
            files=self.fragments,
            rows=int(self.blocks.rows.sum()),
            block_bytes=self.block_bytes,
            filter=self.filter_digest,
        )

    def count_blocks(self) -> NDArray[np.int64]:
        if self.blocks.rows_known or self.counting_reader is None:
            return super().count_blocks()
        return count_rows(self.counting_reader.read, self.block_addresses)

    @property
    def contents(self) -> str:
        schema, rows = self.schema.serialize().to_pybytes(), self.blocks.rows.tobytes()
        digest = digest_parts((self.fingerprint.encode(), self.filter_digest.encode(), schema, rows))
        return digest_parts((digest.encode(), self.stamps.encode())) if self.stamps else digest

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        return tuple(replace(self.block_addresses[block], number=int(block)) for block in blocks)

    def describe(self) -> str:
        counts = {"fragment": self.fragments, "block": len(self.blocks.rows)}
        parts = ", ".join(format_count(count, noun) for noun, count in counts.items())
        return f"{parts}; {format_count(len(self.schema), 'column')}"
