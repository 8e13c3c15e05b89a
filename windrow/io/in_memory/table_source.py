"""A source of Arrow tables in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from windrow.core.source import BlockAddress, BlockPart
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.catalog.schemas import unify_schemas
from windrow.io.in_memory.content_digest import digest_table
from windrow.io.in_memory.in_memory_blocks import Carry, InMemoryBlocks
from windrow.io.in_memory.value_sizes import count_nulls, cut_rows, weigh_table, weigh_tables

__all__ = ["InMemoryReader", "hold_tables", "join_tables"]


@dataclass(frozen=True, eq=False)
class InMemoryReader:
    """Reads blocks in memory; a block's locator is its index.

    Attributes
    ----------
    held
        The blocks: an `InMemoryBlocks`, or what it was unpickled to.
    """

    held: Any

    def read(self, address: BlockAddress) -> pa.Table:
        """The table of a block."""
        return self.held.block(address.locator)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """The block as one part."""
        yield self.read(address)


def hold_tables(
    tables: Sequence[pa.Table], name: str, target_block_bytes: int, carry: Carry | None = None
) -> ListedSource:
    """Create a source of concatenated tables, cut into blocks of equal rows.

    Blocks have equal rows, give or take one, at about ``target_block_bytes`` of values each;
    boundaries between tables do not matter.

    Raises
    ------
    SourceError
        If their schemas do not unify.
    """
    table = join_tables(tables, name)
    borders = cut_rows(table.num_rows, weigh_table(table), target_block_bytes).tolist()
    blocks = [table.slice(start, stop - start) for start, stop in pairwise(borders)]
    return ListedSource(
        name=name,
        schema=table.schema,
        blocks=weigh_tables(blocks, table.schema),
        block_addresses=tuple(
            BlockAddress(f"{name}, rows {start}-{stop - 1}", number)
            for number, (start, stop) in enumerate(pairwise(borders))
        ),
        reader=InMemoryReader(InMemoryBlocks(blocks, carry)),
        fingerprint=digest_table(table),
        null_counts=count_nulls(table),
        block_bytes=target_block_bytes,
        fragments=len(tables),
    )


def join_tables(tables: Sequence[pa.Table], name: str) -> pa.Table:
    """Concatenate tables, with the types that hold the values of all."""
    schemas = [(f"{name}[{index}]", table.schema) for index, table in enumerate(tables)]
    schema = unify_schemas(schemas)
    return pa.concat_tables([_conform(table, schema) for table in tables])


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    table = table.select(schema.names).replace_schema_metadata(None)
    # tables of the right types need no cast, nor the modules that a cast imports
    return (
        pa.table(table.columns, schema=schema) if table.schema.types == schema.types else table.cast(schema)
    )
