"""The partitions of a dask DataFrame as a source; they are computed when read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import BlockAddress
from windrow.core.tracebacks import trims_traceback
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.safe_casts import conform_table
from windrow.io.catalog.value_sizes import make_block_table, weigh_table

_FIX = "make its columns those of the other partitions with astype() in dask, or give schema="

Convert = Callable[[Any, str], pa.Table]


@dataclass(frozen=True, eq=False)
class PartitionsReader(WholeBlockReader):
    """Computes partitions in the reading thread; a block's locator is its partition number.

    ``convert`` makes a table of a pandas DataFrame; its second argument is the block's origin, for errors.
    ``schema`` is None for sampling, before it is known.
    """

    frame: Any
    convert: Convert
    schema: pa.Schema | None = None

    def read(self, address: BlockAddress) -> pa.Table:
        """Compute one partition; a SourceError if its columns differ from those of the first one with rows."""
        try:
            # blocks are already read in parallel
            frame = self.frame.partitions[address.locator].compute(scheduler="synchronous")
        except Exception as error:
            raise SourceError(f"{address.origin}: {type(error).__name__}: {error}") from error
        return conform_table(self.convert(frame, address.origin), self.schema, address.origin, _FIX)


@trims_traceback
def list_partitions(
    frame: Any, convert: Convert, name: str, rows: Sequence[int] | None, schema: pa.Schema | None
) -> ListedSource:
    """Return a source of the partitions of a dask DataFrame, one block each.

    The first partition with rows is computed now. Its types, row size and, without ``rows``, number
    of rows are assumed for the others.
    """
    addresses = tuple(BlockAddress(f"{name}, partition {part}", part) for part in range(frame.npartitions))
    sample = _first_with_rows(PartitionsReader(frame, convert, schema), addresses)
    row_bytes = max(1, weigh_table(sample) // max(1, sample.num_rows))
    counts = np.full(len(addresses), max(1, sample.num_rows)) if rows is None else np.array(rows)
    counts, known = counts.astype(np.int64), rows is not None
    # dask's name of a frame contains a digest of its task graph
    digest = hashlib.sha256(f"{frame._name} {frame.npartitions}\n{sample.schema.to_string()}".encode())
    return ListedSource(
        name=name,
        schema=sample.schema,
        blocks=make_block_table(
            counts, counts * row_bytes, sample.schema, rows_known=known, rows_bounded=known
        ),
        block_addresses=addresses,
        reader=PartitionsReader(frame, convert, sample.schema),
        fingerprint=digest.hexdigest(),
        null_counts=dict.fromkeys(sample.schema.names),
        block_bytes=1,
        fragments=len(addresses),
    )


def _first_with_rows(reader: PartitionsReader, addresses: Sequence[BlockAddress]) -> pa.Table:
    table = None
    for address in addresses:
        table = reader.read(address)
        if table.num_rows:
            break
    if table is None:
        raise SourceError("from_dask: the DataFrame has no partitions")
    return table
