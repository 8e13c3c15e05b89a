"""Opens an epoch of a shard: adopts the prefetch loop that has already moved on to it, or starts a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.delivery.iteration_methods import Check, Delivery
from windrow.pipeline.executors.base import CoordinatorClient, EpochFacts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.partial_runs import Portions
from windrow.pipeline.shard.prefetch_loop import PrefetchLoop
from windrow.pipeline.shard.run_queue import Converter, EpochRuns

__all__ = ["OpenEpoch", "open_epoch"]


@dataclass(frozen=True)
class OpenEpoch:
    """An epoch that has been opened for a shard.

    Attributes
    ----------
    shard_client
        The coordinator client.
    prefetch_loop, runs
        The loop that prefetches the epoch's windows, and the runs that it submits.
    convert
        Splits a span of whole batches and converts each batch.
    opening
        The coordinator's pending reply to the opening, if the epoch was opened without waiting for it.
    """

    shard_client: CoordinatorClient
    prefetch_loop: PrefetchLoop
    runs: EpochRuns
    convert: Callable[[pa.RecordBatch], Iterable[Any]]
    opening: Future[EpochFacts] | None = None

    @property
    def facts(self) -> EpochFacts:
        """The properties of the epoch, known when it is opened."""
        return self.runs.facts


def open_epoch(
    connection: Connection,
    program: Program,
    delivery: Delivery,
    consumer: Consumer,
    *,
    at: Cursor,
) -> OpenEpoch:
    """Start to read an epoch at a cursor.

    Raises
    ------
    PlanError, StateError
        From the executor's coordinator client.
    """
    job, batch_rows = program.job, delivery.batch_rows
    run_rows = program.run_rows(batch_rows)
    runs_per_batch = max(1, batch_rows // run_rows)
    ahead = -(-delivery.prefetch_batches * batch_rows // run_rows)
    depth = max(2, ahead + runs_per_batch)
    # without transforms, the schema was checked before anything was read
    convert = partial(_convert_span, delivery, delivery.check if job.before or job.after else None)
    # many small batches per run are cheaper to convert in the consumer than in the worker threads
    is_single_batch = run_rows <= batch_rows
    converter = None
    if delivery.converter_key is not None and is_single_batch:
        converter = Converter(delivery.converter_key, lambda rows: list(convert(rows)))

    shard_client = connection.open(batch_rows, job.seed)
    prefetch_loop = connection.prefetch_loop
    runs = None
    if prefetch_loop is not None:
        runs = prefetch_loop.find_epoch(
            at, program.assignment(batch_rows, drop_last=delivery.drop_last), depth
        )
    if prefetch_loop is not None and runs is not None:
        opening = shard_client.open_next(at, batch_rows, drop_last=delivery.drop_last)
        prefetch_loop.begin(runs, converter)
        return OpenEpoch(shard_client, prefetch_loop, runs, convert, opening)
    if prefetch_loop is not None:
        # stop the old loop before the new epoch has windows that it could take
        prefetch_loop.stop()
    facts = shard_client.open_epoch(at, batch_rows, drop_last=delivery.drop_last)
    portions = Portions(
        is_transformed=bool(job.after), min_batches=-(-max(1, delivery.prefetch_batches) // depth)
    )
    prefetch_loop = PrefetchLoop(
        shard_client, consumer, after=job.after, depth=depth, portions=portions, leads_on=job.leads_on
    )
    connection.set_prefetch_loop(prefetch_loop)
    return OpenEpoch(shard_client, prefetch_loop, prefetch_loop.start(facts, converter), convert)


def _convert_span(delivery: Delivery, check: Check | None, span: pa.RecordBatch) -> Iterable[Any]:
    if check is not None:
        # the schema of transformed rows is known only once there are rows
        check(span.schema, {})
    return delivery.convert(span)
