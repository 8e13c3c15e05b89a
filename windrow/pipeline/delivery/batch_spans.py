"""Batches: runs regrouped into spans of whole batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from windrow.core.errors import TransformError

__all__ = ["align_runs", "one_batch"]


def align_runs(runs: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Regroup runs into spans of whole batches.

    Runs begin on batch borders except at window borders, so nearly every span is a
    run or a slice of one without a copy; only a batch that straddles two runs is
    copied.

    Parameters
    ----------
    runs
        A shard's runs in the order of its stream.
    batch_rows
        Rows of a batch.

    Yields
    ------
    pyarrow.RecordBatch
        A multiple of ``batch_rows`` rows; the last one may be any number.
    """
    held: list[pa.RecordBatch] = []
    held_rows = 0
    for run in runs:
        if held:
            head = run.slice(0, batch_rows - held_rows)
            held.append(head)
            held_rows += head.num_rows
            run = run.slice(head.num_rows)
            if held_rows == batch_rows:
                yield _join(held)
                held, held_rows = [], 0
        whole = run.num_rows - run.num_rows % batch_rows
        if whole:
            # the run itself, where it is whole, so that what was made of it can be used
            yield run.slice(0, whole) if whole < run.num_rows else run
        if whole < run.num_rows:
            held.append(run.slice(whole))
            held_rows += run.num_rows - whole
    if held:
        yield _join(held)


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def one_batch(table: pa.Table, origin: str) -> pa.RecordBatch:
    """Return the rows that transforms made of a run (one row or more) as one batch."""
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        # Arrow does not join strings of more than 2 GiB, whose offsets have 32 bits
        raise TransformError(
            f"map_batches after the shuffle, {origin}: the {table.num_rows:,} rows returned are too large for "
            "one Arrow array: return large_string or large_binary columns, or smaller values"
        )
    return batches[0]
