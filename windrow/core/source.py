"""What the pipeline asks of a data source: a table of blocks, and a reader for one block.

A source is a manifest and a block reader. The pipeline knows sources only through
these protocols, so that a new format is a new file under ``io`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.frame_of_reference import Packing

__all__ = [
    "BlockAddress",
    "BlockPart",
    "BlockReader",
    "BlockTable",
    "CorruptBlockError",
    "DistantReader",
    "RowOrigin",
    "ScatteringPart",
    "Source",
    "SourceIdentity",
    "TracingSource",
    "can_scatter",
    "column_bounds",
    "decodes_columns",
    "maps_files",
]


class CorruptBlockError(SourceError):
    """What is stored of a block is there, and is what was listed, but cannot be decoded.

    A reader raises it where reading again or elsewhere would not help: not for a file that is
    gone or has changed, a store that does not answer, or a lack of memory.
    """


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The blocks of a dataset in stored order, as the planner sees them.

    Attributes
    ----------
    rows
        (blocks,) rows of each block as stored; where ``rows_known`` is False an upper
        bound, or an estimate of 1 or more.
    decoded_bytes
        (blocks,) bytes of the selected columns once decoded, as footers tell them:
        exact for fixed-width columns, the encoded size for others. Windows given in
        bytes are cut by these, so they never change for given files.
    memory_bytes
        (blocks,) the best estimate of what a decoded block takes in memory; equal to
        ``decoded_bytes`` where that is exact.
    rows_known
        False where reading may drop rows (a filter), or rows cannot be known.
    bytes_exact
        True when ``memory_bytes`` is exact (every selected column is fixed-width).
    rows_bounded
        False where ``rows`` is an estimate.
    packed_bytes
        (blocks,) of ``memory_bytes``, what is left where words are packed (`windrow.core.frame_of_reference`);
        None where nothing tells.
    """

    rows: NDArray[np.int64]
    decoded_bytes: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    rows_known: bool
    bytes_exact: bool
    rows_bounded: bool = True
    packed_bytes: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class BlockAddress:
    """Where one block is stored: small, picklable, enough for a reader in any process.

    Attributes
    ----------
    origin
        The block in words, for errors: ``"part-3.parquet, row groups 4-7"``.
    locator
        What the reader needs; opaque to everyone else.
    """

    origin: str
    locator: Any


@dataclass(frozen=True)
class SourceIdentity:
    """What the order of rows depends on in a source, as saved states name it.

    Attributes
    ----------
    fingerprint
        A digest of the data: relative paths, sizes and footers.
    schema
        A digest of all columns that the files have.
    files, rows
        How many, as stored.
    block_bytes
        The size that small row groups are joined up to.
    filter
        A digest of the filter; empty without one.
    """

    fingerprint: str
    schema: str
    files: int
    rows: int
    block_bytes: int
    filter: str


class RowOrigin(NamedTuple):
    """Where a row is stored.

    Attributes
    ----------
    path
        The file, as the source names it.
    row_group
        The row group in it.
    row
        The row in that row group.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet", row_group_size=4)
    >>> ((path, row_group, row),) = windrow.read_parquet("numbers.parquet").row_lineage([5])
    >>> row_group, row
    (1, 1)
    """

    path: str
    row_group: int
    row: int


class BlockPart(Protocol):
    """Consecutive rows of a block; a `pyarrow.Table` is one."""

    @property
    def num_rows(self) -> int:
        """Its rows."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The source's schema."""
        ...

    def select(self, columns: list[int]) -> pa.Table:
        """Some of its columns, by number; they may be decoded only now."""
        ...


class ScatteringPart(BlockPart, Protocol):
    """Rows of a block that can be decoded straight to where they go."""

    def scatter_words(
        self,
        columns: Sequence[int],
        packings: Sequence[Packing],
        targets: NDArray[np.uint32],
        outs: Sequence[NDArray[np.uint8]],
    ) -> Sequence[bool]:
        """Write the word of each row of some columns, packed, to word ``targets[row]`` of the column's ``out``.

        Returns
        -------
        sequence of bool
            Whether each was decoded so; another is asked for with `select` then, and its ``out`` may
            hold anything. So is one with a word that its packing does not hold.
        """
        ...

    def scatter_text(
        self, column: int, targets: NDArray[np.uint32], cuts: Sequence[slice], pool: BufferPool
    ) -> list[pa.Array] | None:
        """Make arrays of text, of strings or bytes, whose rows are put in order.

        Row i goes to row ``targets[i]`` of all; each of ``cuts`` says which of these an array holds.

        Returns
        -------
        list of pyarrow.Array or None
            None where this column cannot be decoded so; it is asked for with `select` then.
        """
        ...


class BoundedPart(BlockPart, Protocol):
    """Rows of a block of which something is known before they are decoded."""

    def bounds(self, column: int) -> tuple[int, int] | None:
        """The least and the largest word of a column of whole numbers or times, as signed numbers.

        Returns
        -------
        tuple or None
            What is told, and may be wrong; None where nothing is.
        """
        ...


def column_bounds(part: BlockPart, column: int) -> tuple[int, int] | None:
    """What a part tells of a column (`BoundedPart`); None where it tells nothing."""
    bounds = getattr(part, "bounds", None)
    return None if bounds is None else bounds(column)


def can_scatter(part: BlockPart) -> TypeGuard[ScatteringPart]:
    """Whether a part is a `ScatteringPart`: asked for each column, where ``isinstance`` would take 12 µs."""
    return hasattr(part, "scatter_words")


def decodes_columns(reader: BlockReader) -> bool:
    """Whether what `BlockReader.parts` gives is decoded column by column, and no part of it is held meanwhile."""
    return bool(getattr(reader, "decodes_columns", False))


def maps_files(reader: BlockReader) -> bool:
    """Whether what `BlockReader.parts` gives may be views of mapped files, which others can write to later.

    What `BlockReader.read` gives never is.
    """
    return bool(getattr(reader, "maps_files", False))


class BlockReader(Protocol):
    """Reads blocks; small and picklable, shared by every task of a run."""

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, single-threaded, with the source's schema exactly.

        Raises
        ------
        CorruptBlockError
            If what is stored cannot be decoded; any other `SourceError` if it cannot be had.
        """
        ...

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part, so that a column is used while it is in the cache.

        The parts together are what `read` returns. A part must be used before the next
        one is asked for.
        """
        ...


@runtime_checkable
class DistantReader(BlockReader, Protocol):
    """A reader that may have to wait for a store."""

    @property
    def distant(self) -> bool:
        """Whether it does, so that `parts` is worth beginning before it is needed.

        `parts` then asks for all bytes of the block before it yields the first part, and may be
        begun in another thread than the one that goes on with it.
        """
        ...


class Source(Protocol):
    """A dataset at rest."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every block that the reader returns."""
        ...

    @property
    def blocks(self) -> BlockTable:
        """All blocks in stored order."""
        ...

    @property
    def reader(self) -> BlockReader:
        """The reader for this source's blocks."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of the data: relative paths, sizes and footers."""
        ...

    def identity(self, files: int | None = None) -> SourceIdentity:
        """What the order of rows depends on; as if only the first ``files`` were there, where given."""
        ...

    @property
    def contents(self) -> str:
        """A digest of what each block holds: the data, columns, filter, and the cut into blocks."""
        ...

    @property
    def null_counts(self) -> Mapping[str, int | None]:
        """Nulls by column as the files state them; None where they do not."""
        ...

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        """The addresses of some blocks, by their number in stored order."""
        ...

    def describe(self) -> str:
        """One line for ``explain()``: fragments, row groups, columns."""
        ...


@runtime_checkable
class TracingSource(Source, Protocol):
    """A source that tells where its rows are stored.

    Stored rows have numbers: their rank among all rows of all files, in stored order.
    """

    def count_blocks(self) -> NDArray[np.int64]:
        """(blocks,) the rows that each block delivers; reads what a filter needs."""
        ...

    def row_numbers(self, block: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows,) the numbers of rows that a block delivers; reads it where a filter may drop some."""
        ...

    def row_lineage(self, numbers: NDArray[np.int64]) -> list[RowOrigin]:
        """Where the rows of some numbers are stored."""
        ...

    def with_row_id(self, name: str) -> Source:
        """The same source with a column, the last, of the rows' numbers: int64.

        It changes no order. Raises a `PlanError` where there is a column of that name.
        """
        ...
