"""Ray Data datasets, and Spark's on Ray (RayDP), as sources: blocks stay in the object store until tasks read them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from windrow.core.errors import SourceError
from windrow.core.source import BlockAddress, BlockPart, BlockTable
from windrow.io.catalog.content_digest import digest_table
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.catalog.safe_casts import cast_table, plain_table
from windrow.io.catalog.schemas import unify_schemas
from windrow.io.catalog.value_sizes import count_nulls, cut_rows, fixed_bits, weigh_table
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.executors.ray.pickling import export_code


@dataclass(frozen=True, eq=False)
class RefsReader:
    """Reads tables from Ray's object store; the locator of a block is (reference, start row, stop row).

    Attributes
    ----------
    schema
        The schema of every block.
    """

    schema: pa.Schema

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, backed by the object store's memory.

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
                f"{address.origin}: its object is lost ({type(error).__name__}): objects live only as long as "
                "the process that made the Ray dataset; create the Ray dataset and this one again"
            ) from error
        rows = plain_table(table.slice(start, stop - start))
        return cast_table(rows, self.schema, lambda row: f"{address.origin}, row {start + row}")

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Yield the block as one part."""
        yield self.read(address)


@dataclass(frozen=True)
class _BlockInfo:
    """Metadata of one of Ray's blocks, measured in a task."""

    schema: pa.Schema
    rows: int
    size_bytes: int
    nulls: dict[str, int]
    digest: str
    # the distinct lengths of the lists of some columns
    lengths: dict[str, set[int]]


def _inspect(table: pa.Table, vectors: Sequence[str]) -> _BlockInfo:
    import pyarrow.compute as pc

    counted = {name: pc.unique(pc.list_value_length(table.column(name))) for name in vectors}
    lengths = {name: set(found.drop_null().to_pylist()) for name, found in counted.items()}
    table = plain_table(table.replace_schema_metadata(None))
    return _BlockInfo(
        table.schema, table.num_rows, weigh_table(table), count_nulls(table), digest_table(table), lengths
    )


# num_cpus=0, since consumers may hold all CPUs; an explicit strategy escapes the caller's placement group
_inspect_remote: Any = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_inspect)


def _inspect_blocks(dataset: Any, name: str, vectors: Sequence[str] = ()) -> list[tuple[Any, _BlockInfo]]:
    """The blocks of a Ray dataset, which this executes."""
    refs = dataset.to_arrow_refs()
    export_code()
    infos = get_all([_inspect_remote.remote(ref, tuple(vectors)) for ref in refs], name)
    return list(zip(refs, infos, strict=True))


def list_blocks(dataset: Any, name: str, target_block_bytes: int) -> ListedSource:
    """Make a source from a Ray dataset; executes the dataset, and splits large blocks.

    Raises
    ------
    SourceError
        If the dataset cannot be executed, or has no rows.
    """
    try:
        found = _inspect_blocks(dataset, name)
    except ray.exceptions.RayError as error:
        raise SourceError(f"{name}: the Ray dataset cannot be executed ({error})") from error
    return _make_source(found, name, target_block_bytes)


def _make_source(found: Sequence[tuple[Any, _BlockInfo]], name: str, target_block_bytes: int) -> ListedSource:
    non_empty = [(ref, info) for ref, info in found if info.rows]
    if not non_empty:
        raise SourceError(f"{name}: the Ray dataset has no rows, so its columns are unknown")
    infos = [info for _, info in non_empty]
    schema = unify_schemas([(f"{name}, block {place}", info.schema) for place, info in enumerate(infos)])
    addresses: list[BlockAddress] = []
    sizes: list[float] = []
    for place, (ref, info) in enumerate(non_empty):
        borders = cut_rows(info.rows, info.size_bytes, target_block_bytes).tolist()
        for start, stop in pairwise(borders):
            origin = f"{name}, block {place}, rows {start}-{stop - 1}"
            addresses.append(BlockAddress(origin, (ref, start, stop)))
            sizes.append(info.size_bytes * (stop - start) / info.rows)
    rows = np.array([stop - start for _, start, stop in (address.locator for address in addresses)], np.int64)
    widths = [fixed_bits(field.type) for field in schema]
    exact = None not in widths
    # bit-packed columns can take up to a byte more per block
    block_bytes = (
        (rows * sum(width or 0 for width in widths) + 7) // 8 if exact else np.ceil(sizes).astype(np.int64)
    )
    return ListedSource(
        name=name,
        schema=schema,
        blocks=BlockTable(rows, block_bytes, block_bytes, rows_known=True, bytes_exact=exact),
        block_addresses=tuple(addresses),
        reader=RefsReader(schema),
        fingerprint=hashlib.sha256("\n".join(info.digest for info in infos).encode()).hexdigest(),
        null_counts={column: sum(info.nulls[column] for info in infos) for column in schema.names},
        block_bytes=target_block_bytes,
        fragments=len(infos),
    )


def list_frame(df: Any, vectors: Sequence[str], target_block_bytes: int) -> ListedSource:
    """Make a source from a DataFrame; Spark computes it now, one object per partition.

    Parameters
    ----------
    vectors
        List columns that become fixed-size lists if all their lists have one length.

    Raises
    ------
    SourceError
        If Spark fails, or there are no rows.
    """
    from raydp.spark.dataset import from_spark_recoverable

    try:
        found = _inspect_blocks(from_spark_recoverable(df).materialize(), "from_spark", vectors)
    except ray.exceptions.RayError as error:
        raise SourceError(
            f"from_spark: RayDP could not move the rows ({error}): check that RayDP's executors are running, "
            "or pass use='parquet'"
        ) from error
    source = _make_source(found, "from_spark", target_block_bytes)
    widths = {name: set().union(*(info.lengths[name] for _, info in found)) for name in vectors}
    fields = [_fixed(field, widths.get(field.name, set())) for field in source.schema]
    schema = pa.schema(fields)
    return replace(source, schema=schema, reader=RefsReader(schema))


def _fixed(field: Any, lengths: set[int]) -> Any:
    if len(lengths) != 1:
        return field
    return field.with_type(pa.list_(field.type.value_field, lengths.pop()))
