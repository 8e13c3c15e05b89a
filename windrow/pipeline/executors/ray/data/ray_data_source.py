"""Blocks of a Ray Data dataset as a source: they stay in Ray's store, and tasks get those they read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from windrow.core.errors import SourceError
from windrow.core.source import BlockAddress, BlockPart, BlockTable
from windrow.io.adapters.extension_types import plain_table
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.catalog.schemas import unify_schemas
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.in_memory.content_digest import digest_table
from windrow.io.in_memory.value_sizes import count_nulls, cut_rows, weigh_table
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.executors.ray.function_export import export_code

__all__ = ["RefsReader", "list_blocks"]


@dataclass(frozen=True, eq=False)
class RefsReader:
    """Reads tables in Ray's store; the locator of a block is (reference, start, stop).

    Attributes
    ----------
    schema
        What every block has.
    """

    schema: pa.Schema

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, in the store's memory.

        Raises
        ------
        SourceError
            If its object is lost, or Ray has been shut down.
        """
        ref, start, stop = address.locator
        try:
            (table,) = get_all([ref], address.origin)
        except ray.exceptions.RayError as error:
            raise SourceError(
                f"{address.origin}: its object cannot be had ({type(error).__name__}): it lasts as long as "
                "the process that made the Ray dataset; make both again"
            ) from error
        return plain_table(table.slice(start, stop - start)).select(self.schema.names).cast(self.schema)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """The block as one part."""
        yield self.read(address)


@dataclass(frozen=True)
class _BlockInfo:
    """What is known of one of Ray's blocks."""

    schema: pa.Schema
    rows: int
    size_bytes: int
    nulls: dict[str, int]
    digest: str


def _inspect(table: pa.Table) -> _BlockInfo:
    table = plain_table(table.replace_schema_metadata(None))
    return _BlockInfo(
        table.schema, table.num_rows, weigh_table(table), count_nulls(table), digest_table(table)
    )


# without a CPU and with a strategy: consumers may hold all CPUs, and a placement group the caller
_inspect_remote: Any = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_inspect)


def list_blocks(dataset: Any, name: str, target_block_bytes: int) -> ListedSource:
    """A source of a Ray dataset, which is executed now; large ones of its blocks are cut.

    Raises
    ------
    SourceError
        If it cannot be executed, or has no rows.
    """
    try:
        refs = dataset.to_arrow_refs()
        export_code()
        infos: list[_BlockInfo] = get_all([_inspect_remote.remote(ref) for ref in refs], name)
    except ray.exceptions.RayError as error:
        raise SourceError(f"{name}: the Ray dataset cannot be executed ({error})") from error
    non_empty = [(ref, info) for ref, info in zip(refs, infos, strict=True) if info.rows]
    if not non_empty:
        raise SourceError(f"{name}: the Ray dataset has no rows, so nothing tells the columns")
    kept = [info for _, info in non_empty]
    schema = unify_schemas([(f"{name}, block {place}", info.schema) for place, info in enumerate(kept)])
    addresses: list[BlockAddress] = []
    sizes: list[float] = []
    for place, (ref, info) in enumerate(non_empty):
        borders = cut_rows(info.rows, info.size_bytes, target_block_bytes).tolist()
        for start, stop in pairwise(borders):
            addresses.append(
                BlockAddress(f"{name}, block {place}, rows {start}-{stop - 1}", (ref, start, stop))
            )
            sizes.append(info.size_bytes * (stop - start) / info.rows)
    return _source(name, schema, addresses, sizes, kept, target_block_bytes)


def _source(
    name: str,
    schema: pa.Schema,
    addresses: Sequence[BlockAddress],
    sizes: Sequence[float],
    infos: Sequence[_BlockInfo],
    target_block_bytes: int,
) -> ListedSource:
    rows = np.array([stop - start for _, start, stop in (address.locator for address in addresses)], np.int64)
    widths = [fixed_bits(field.type) for field in schema]
    exact = None not in widths
    # columns that lie bit by bit may take a byte more for each block
    held = (rows * sum(width or 0 for width in widths) + 7) // 8 if exact else np.ceil(sizes).astype(np.int64)
    return ListedSource(
        name=name,
        schema=schema,
        blocks=BlockTable(rows, held, held, rows_known=True, bytes_exact=exact),
        block_addresses=tuple(addresses),
        reader=RefsReader(schema),
        fingerprint=hashlib.sha256("\n".join(info.digest for info in infos).encode()).hexdigest(),
        null_counts={column: sum(info.nulls[column] for info in infos) for column in schema.names},
        block_bytes=target_block_bytes,
        fragments=len(infos),
    )
