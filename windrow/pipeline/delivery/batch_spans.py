"""Regroups runs into spans of whole batches, without a copy where possible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from windrow.core.errors import TransformError

__all__ = ["align_runs", "one_batch"]


def align_runs(runs: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Regroup runs into spans of whole batches.

    Runs start at batch boundaries except at window boundaries, so nearly every span is a run or a zero-copy
    slice of one. Only a batch that straddles two runs is copied.

    Parameters
    ----------
    runs
        A shard's runs in the order of its stream.
    batch_rows
        Rows per batch.

    Yields
    ------
    pyarrow.RecordBatch
        A multiple of ``batch_rows`` rows; any number of rows in the last span.
    """
    pending: list[pa.RecordBatch] = []
    pending_rows = 0
    for run in runs:
        if pending:
            head = run.slice(0, batch_rows - pending_rows)
            pending.append(head)
            pending_rows += head.num_rows
            run = run.slice(head.num_rows)
            if pending_rows == batch_rows:
                yield _join(pending)
                pending, pending_rows = [], 0
        whole = run.num_rows - run.num_rows % batch_rows
        if whole:
            # a whole run is yielded as the same object, by which its converted batches are found
            yield run.slice(0, whole) if whole < run.num_rows else run
        if whole < run.num_rows:
            pending.append(run.slice(whole))
            pending_rows += run.num_rows - whole
    if pending:
        yield _join(pending)


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def one_batch(table: pa.Table, origin: str) -> pa.RecordBatch:
    """Return the rows that transforms made from a run (at least one row) as one batch."""
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        # Arrow does not concatenate strings beyond 2 GiB, since their offsets have 32 bits
        raise TransformError(
            f"map_batches after the shuffle, {origin}: the {table.num_rows:,} rows returned are too large for "
            "one Arrow array: return large_string or large_binary columns, or smaller values"
        )
    return batches[0]
