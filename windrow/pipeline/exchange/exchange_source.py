"""`ExchangeSource`: a source whose blocks are the partitions of an exchange."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.byte_sizes import format_bytes
from windrow.core.cached_properties import cached_property
from windrow.core.source import BlockAddress, BlockTable
from windrow.io.catalog.listed_source import WholeBlockReader
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.pipeline.exchange.derived_source import DerivedSource, Parent
from windrow.pipeline.exchange.exchange import Exchange
from windrow.pipeline.exchange.operations import MapTask, Operation
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.job import Options
from windrow.shuffle.kernels.arrow_columns import join_table


class OutputRows(Enum):
    """How many rows the partitions have."""

    # the same number, give or take one
    EQUAL = auto()
    # all rows together, divided somehow
    ALL = auto()
    # at most all rows together
    AT_MOST = auto()


@dataclass(frozen=True)
class ExchangePlan:
    """An operation whose fields may depend on the parent's row counts, and how many rows it delivers."""

    make: Callable[[Parent], Operation]
    partitions: int
    rows: OutputRows


@dataclass(frozen=True, eq=False)
class ExchangeReader(WholeBlockReader):
    """Merges the pieces of partitions; a block's locator is its `Pieces`."""

    operation: Operation
    schema: pa.Schema
    # of the pieces
    spilled: pa.Schema

    def read(self, address: BlockAddress) -> pa.Table:
        tables = address.locator.read(address.origin)
        table = pa.concat_tables(tables) if tables else empty_table(self.spilled)
        del tables
        # the pieces are released before the merge copies the rows
        table = join_table(table)
        merged = self.operation.merge(table, address.locator.partition)
        del table
        return join_table(merged)


@dataclass(frozen=True, eq=False, repr=False)
class ExchangeSource(DerivedSource):
    """The result of an exchange; it runs when the first block is needed, and not before."""

    plan: ExchangePlan
    options: Options
    exchange: Exchange

    @cached_property
    def operation(self) -> Operation:
        """The operation, without samples: enough to merge."""
        return self.plan.make(self.parents[0])

    @cached_property
    def spilled_schema(self) -> pa.Schema:
        """The schema of the pieces."""
        names, schema = self.operation.columns, self.parents[0].schema
        needed = schema if names is None else pa.schema([schema.field(name) for name in names])
        return self.operation.divide(empty_table(needed), MapTask(0, 1, ())).table.schema

    @cached_property
    def schema(self) -> pa.Schema:
        return self.operation.merge(empty_table(self.spilled_schema), 0).schema

    @cached_property
    def blocks(self) -> BlockTable:
        parent, count = self.parents[0], self.plan.partitions
        inner = parent.source.blocks
        places = np.arange(count + 1, dtype=np.int64)
        sizes = np.diff(places * int(inner.memory_bytes.sum()) // count)
        if self.plan.rows is OutputRows.EQUAL:
            total, known = int(parent.row_counts.sum()), True
        else:
            total = int(inner.rows.sum())
            known = parent.rows_known and count == 1 and self.plan.rows is OutputRows.ALL
        rows = np.diff(places * total // count)
        bounded = count == 1 and parent.rows_bounded
        if not known and not bounded:
            rows = np.maximum(rows, 1)
        exact = known and all(fixed_bits(kind) is not None for kind in self.schema.types)
        return BlockTable(
            rows,
            sizes,
            sizes,
            rows_known=known,
            bytes_exact=exact and inner.bytes_exact and not parent.maps,
            rows_bounded=known or bounded,
        )

    @property
    def reader(self) -> ExchangeReader:
        return ExchangeReader(self.operation, self.schema, self.spilled_schema)

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        spilled = self.exchange.run()
        return tuple(
            BlockAddress(f"{self.call}, partition {block}", spilled.pieces(block), int(block))
            for block in blocks
        )

    def count_blocks(self) -> NDArray[np.int64]:
        """(blocks,) rows of each; those of a sort or shuffle are known once it has run."""
        if self.plan.rows is OutputRows.AT_MOST:
            return super().count_blocks()
        return self.exchange.run().rows.sum(axis=0)

    def prepare(self) -> None:
        self.exchange.run()

    def describe(self) -> str:
        size = format_bytes(int(self.parents[0].source.blocks.memory_bytes.sum()))
        if resolve_executor(self.options.executor).name == "ray":
            where = "Ray's object store"
        else:
            where = str(self.options.cache_dir or tempfile.gettempdir())
        return f"{self.call} spills about {size} to {where}; {self.parents[0].source.describe()}"


def plan_partitions(parent: Parent, target_bytes: int, columns: Sequence[str] | None = None) -> int:
    """Return how many partitions of about a size the rows, or some of their columns, make."""
    blocks = parent.source.blocks
    size = int(blocks.memory_bytes.sum())
    schema = parent.known_schema
    if columns is not None and schema is not None:
        widths = [fixed_bits(schema.field(name).type) for name in columns]
        if None not in widths:
            size = min(size, int(blocks.rows.sum()) * (sum(width or 0 for width in widths) + 7) // 8)
    return max(1, -(-size // target_bytes))


def exchange_source(
    parent: Parent, plan: ExchangePlan, options: Options, call: str, text: str
) -> ExchangeSource:
    """Make the source of an exchange."""
    exchange = Exchange(parent, plan.make, options, call)
    return ExchangeSource((parent,), call, text, plan, options, exchange)
