"""How a shard begins an epoch: with the walk that has gone on to it by then, or with one that begins anew."""

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
    feed
        The line to the run.
    walk, runs
        What walks its windows, and what it tells of them.
    convert
        Makes the batches of a span of whole ones.
    opening
        What the run says of the epoch, where that was not waited for.
    """

    shard_client: CoordinatorClient
    prefetch_loop: PrefetchLoop
    runs: EpochRuns
    convert: Callable[[pa.RecordBatch], Iterable[Any]]
    opening: Future[EpochFacts] | None = None

    @property
    def facts(self) -> EpochFacts:
        """What is known of the epoch from its beginning."""
        return self.runs.facts


def open_epoch(
    connection: Connection,
    program: Program,
    delivery: Delivery,
    consumer: Consumer,
    *,
    at: Cursor,
) -> OpenEpoch:
    """Begin to read an epoch at a cursor.

    Raises
    ------
    PlanError, StateError
        As the executor's feed does.
    """
    job, batch_rows = program.job, delivery.batch_rows
    run_rows = program.run_rows(batch_rows)
    runs_per_batch = max(1, batch_rows // run_rows)
    ahead = -(-delivery.prefetch_batches * batch_rows // run_rows)
    depth = max(2, ahead + runs_per_batch)
    # without transforms, the schema has been checked before anything was read
    convert = partial(_convert_span, delivery, delivery.check if job.before or job.after else None)
    # of many small batches a consumer makes its own at less cost than the threads that place
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
        # before there is anything that it could take from the next one
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
        # the schema of what transforms return is known with their rows
        check(span.schema, {})
    return delivery.convert(span)
