"""The source interface: a table of blocks (the manifest), and a reader for one block.

The pipeline accesses sources only through these protocols, so a new format needs only a new file under
``io``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, cast, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# before any type is pickled
from windrow.core import arrow_pickling as arrow_pickling
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.errors import SourceError
from windrow.core.frame_of_reference import bounds_table

# registers the type before any file is read
from windrow.core.variable_tensors import VariableShapeTensorType as VariableShapeTensorType

R = TypeVar("R")


class CorruptBlockError(SourceError):
    """The stored bytes of a block are present and unchanged since listing, but cannot be decoded.

    A reader raises it only if a retry, here or elsewhere, would not help: not for a missing or changed file,
    an object storage that does not answer, or a lack of memory.
    """


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The blocks of a dataset in stored order, as the planner sees them: arrays of one value a block."""

    # as stored; if `rows_known` is False, an upper bound, or, if `rows_bounded` is too, an estimate of at least 1
    rows: NDArray[np.int64]
    # of the selected columns, from the footers: exact for fixed-width columns, the encoded size for others;
    # windows sized in bytes are cut by it, so the cut is fixed for given files
    decoded_bytes: NDArray[np.int64]
    # best estimate of a decoded block's size in memory; `decoded_bytes` where that is exact
    memory_bytes: NDArray[np.int64]
    # False if reading can drop rows (a filter), or the row counts are unknown
    rows_known: bool
    # whether `memory_bytes` is exact: every selected column is fixed-width
    bytes_exact: bool
    rows_bounded: bool = True
    # `memory_bytes` after frame-of-reference encoding; None without column statistics
    packed_bytes: NDArray[np.int64] | None = None
    # (windows + 1,) where each window starts, if the source states its windows
    window_starts: NDArray[np.int64] | None = None
    # the files that reading the block opens; None: reading it costs nothing beside its bytes
    files: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class BlockAddress:
    """Where one block is stored: small, picklable, sufficient for a reader in any process."""

    origin: str  # for errors: "part-3.parquet, row groups 4-7"
    locator: Any  # the reader's own data, opaque to everything else
    number: int = 0  # the block's number in stored order, as `Source.addresses` sets it


@dataclass(frozen=True)
class SourceIdentity:
    """The properties of a source that determine the order of rows, as stored in checkpoints."""

    fingerprint: str  # digest of the data: relative paths, sizes and footers
    schema: str  # digest of all columns in the files, selected or not
    files: int  # this and rows: as stored
    rows: int
    block_bytes: int  # up to this size, small row groups are joined into a block
    filter: str  # digest of the filter; empty without one
    cuts_row_groups: bool = False  # whether blocks are pieces of larger row groups


class RowOrigin(NamedTuple):
    """Where a row is stored.

    Attributes
    ----------
    path
        The file, as the source names it.
    row_group
        The row group's number in the file.
    row
        The row's number in the row group.

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
    def num_rows(self) -> int: ...

    @property
    def schema(self) -> pa.Schema:
        """The source's schema."""

    def select(self, columns: list[int]) -> pa.Table:
        """Columns by number; the part may decode them only now."""


class Scattered(NamedTuple):
    """What became of columns that a part was asked to scatter."""

    done: NDArray[np.bool_]  # (columns,) whether the values of each were scattered
    # by column with nulls: (rows,) 1 for valid and 0 for null, in target order
    valid: Mapping[int, NDArray[np.uint8]]

    @classmethod
    def none(cls, columns: int) -> Scattered:
        """Nothing was scattered."""
        return cls(np.zeros(columns, np.bool_), {})


class ScatteringPart(BlockPart, Protocol):
    """A part whose columns can be decoded directly into their destination."""

    def scatter_values(
        self,
        columns: Sequence[int],
        packings: NDArray[np.int64],
        targets: NDArray[np.uint32],
        outs: ColumnMemory,
        pool: BufferPool,
    ) -> Scattered:
        """Scatter fixed-width columns: encode each row's value into slot ``targets[row]`` of the column's memory.

        ``packings``, (columns, 2), has the `Packing` of each. Nulls become zeros. A column can be left as it was, also
        because a value overflows its packing: what is in its memory is undefined then, and the caller decodes it
        with `select`.
        """

    def decode_nested(self, column: int, pool: BufferPool) -> pa.Array | None:
        """Decode a column of lists or structs into memory of the pool; None if the column does not support it."""

    def scatter_text(
        self, column: int, targets: NDArray[np.uint32], cuts: Sequence[slice], pool: BufferPool
    ) -> list[pa.Array] | None:
        """Scatter a text column (strings or bytes) into one array for each of ``cuts``, a range of target rows.

        Row i moves to row ``targets[i]``. None if the column does not support it; the caller then uses
        `select`.
        """


def column_bounds(part: BlockPart, columns: Sequence[int]) -> NDArray[np.int64]:
    """(columns, 2) stored minimum and maximum of integer or temporal columns as signed integers, perhaps wrong.

    The maximum is less where they are unknown. A part that has them before it is decoded tells them by a method
    ``bounds``.
    """
    bounds: Callable[[Sequence[int]], NDArray[np.int64]] | None = getattr(part, "bounds", None)
    return bounds_table([None] * len(columns)) if bounds is None else bounds(columns)


def can_scatter(part: BlockPart) -> TypeGuard[ScatteringPart]:
    """Whether a part is a `ScatteringPart`; called for each column, where ``isinstance`` would take 12 µs."""
    return hasattr(part, "scatter_values")


def decodes_columns(reader: BlockReader) -> bool:
    """Whether `BlockReader.parts` decodes column by column and buffers no decoded part meanwhile."""
    return bool(getattr(reader, "decodes_columns", False))


def maps_files(reader: BlockReader) -> bool:
    """Whether `BlockReader.parts` can return views of memory-mapped files, which others can modify later.

    `BlockReader.read` never does.
    """
    return bool(getattr(reader, "maps_files", False))


def joins_blocks(reader: BlockReader) -> bool:
    """Whether a reader has a method ``join_blocks``, to read several blocks in fewer parts than one by one.

    Each part costs calls of kernels and of the decoder, however small it is.
    """
    return bool(getattr(reader, "joins_blocks", False))


def join_blocks(reader: Any, addresses: Sequence[BlockAddress]) -> BlockAddress | None:
    """The address of one block with the rows of several, in their order; None if these are to be read one by one."""
    joined: BlockAddress | None = reader.join_blocks(addresses) if joins_blocks(reader) else None
    return joined


def is_remote(reader: BlockReader) -> bool:
    """Whether a reader's files are on object storage: reads have high latency, so starting `parts` ahead of time pays.

    `BlockReader.parts` then requests all bytes of the block before it yields the first part, and one thread can start
    it and another continue it.
    """
    return bool(getattr(reader, "is_remote", False))


def schema_changes(source: Source) -> tuple[str, ...]:
    """One text for each column that some files store in another type or lack; none for sources without files."""
    return tuple(getattr(source, "schema_changes", ()))


def with_stages(reader: R, replace_stages: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> R:
    """The same reader, with others for the transforms that it applies to its parents' blocks; most have no parents."""
    method = getattr(reader, "with_stages", None)
    return reader if method is None else cast("R", method(replace_stages))


def prepare_source(source: Source) -> None:
    """Do the work that a source needs once before its blocks have addresses, such as a sort; most need none.

    A run calls it before it starts, in the process that starts it. `Source.addresses` does the same work where
    it is still to be done.
    """
    prepare = getattr(source, "prepare", None)
    if prepare is not None:
        prepare()


class BlockReader(Protocol):
    """Reads blocks; small and picklable, shared by every task of a job."""

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, single-threaded, with exactly the source's schema.

        Raises a `CorruptBlockError` if the stored bytes cannot be decoded, any other `SourceError` if they
        cannot be read.
        """

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part, so that a column is used while it is in the CPU cache.

        The parts concatenate to what `read` returns. A part is valid only until the next one is requested.
        """


class Source(Protocol):
    """A dataset at rest."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every block that the reader returns."""

    @property
    def blocks(self) -> BlockTable:
        """All blocks in stored order."""

    @property
    def reader(self) -> BlockReader:
        """The reader for this source's blocks."""

    @property
    def fingerprint(self) -> str:
        """A digest of the data: relative paths, sizes and footers."""

    def identity(self, files: int | None = None) -> SourceIdentity:
        """The properties that determine the order of rows; if given, of only the first ``files`` files."""

    @property
    def contents(self) -> str:
        """A digest of the content of each block: the data, columns, filter, and the cut into blocks."""

    @property
    def null_counts(self) -> Mapping[str, int | None]:
        """Null count of each column as recorded in the files; None if not recorded."""

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        """Addresses of blocks, by their number in stored order."""

    def describe(self) -> str:
        """One line for ``explain()``: fragments, row groups, columns."""


@runtime_checkable
class TracingSource(Source, Protocol):
    """A source that can trace rows to their files.

    A stored row's number is its rank among all rows of all files, in stored order.
    """

    def count_blocks(self) -> NDArray[np.int64]:
        """(blocks,) row count of each block after the filter; reads the columns that the filter needs."""

    def row_numbers(self, block: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows,) stored row numbers of a block's ``rows``; reads the block if a filter can drop rows."""

    def row_lineage(self, numbers: NDArray[np.int64]) -> list[RowOrigin]:
        """Where rows are stored, by their numbers."""

    def with_row_id(self, name: str) -> Source:
        """The same source with the row numbers appended as the last column, int64.

        The order stays the same. Raises a `PlanError` if a column of that name exists.
        """
