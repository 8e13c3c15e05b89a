"""Reads the first rows, and the schema after transforms, in this process from as few blocks as possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from windrow.core.arrow_support import concat_rows, empty_table
from windrow.core.source import BlockAddress, BlockReader, Source
from windrow.core.tracebacks import trims_traceback
from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.failed_rows import naming_stored_rows
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.sequence_packing import sample_sequences
from windrow.pipeline.tasks.transforms import FailedRows, apply_maps, check_schema


@trims_traceback
def find_schema(job: Job, *, skips_failed: bool = False) -> pa.Schema:
    """Return the schema that a job delivers; with transforms, it is taken from their first rows.

    ``skips_failed``: from the first rows for which they do not fail.
    """
    if job.packing is not None:
        return sample_sequences(job.source, job.before, job.packing, job.after).schema
    maps = (*job.before, *job.after)
    failed = FailedRows() if skips_failed else None
    return read_head(job.source, maps, 1, job.seed or 0, failed).schema if maps else job.source.schema


@trims_traceback
def read_head(
    source: Source, maps: Sequence[MapBatches], limit: int, seed: int = 0, failed: FailedRows | None = None
) -> pa.Table:
    """Read the first ``limit`` rows in stored order and apply transforms.

    If there are no rows, the table has the source's schema.
    """
    blocks = np.flatnonzero(source.blocks.rows).tolist()
    addresses = (address for block in blocks for address in source.addresses([block]))
    with naming_stored_rows(source):
        found = read_first_rows(source.reader, addresses, maps, limit, seed, failed)
    return empty_table(source.schema) if found is None else found


def read_first_rows(
    reader: BlockReader,
    addresses: Iterable[BlockAddress],
    maps: Sequence[MapBatches],
    limit: int,
    seed: int = 0,
    failed: FailedRows | None = None,
) -> pa.Table | None:
    """Read the first ``limit`` rows of blocks and apply transforms; None if there are no rows."""
    found, remaining = list[pa.Table](), limit
    for address in addresses:
        positions = StoredRows(address.number, seed=seed)
        table = apply_maps(reader.read(address), maps, address.origin, positions, failed)
        if not table.num_rows:
            continue  # transforms are not applied to empty tables, so the schema is not the final one
        if found:
            check_schema(found[0].schema, table.schema, address.origin)
        found.append(table.slice(0, remaining))
        remaining -= found[-1].num_rows
        if remaining <= 0:
            break
    return concat_rows(found) if found else None
