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
from windrow.pipeline.executors.base import EpochFacts, Feed
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.partial_runs import Portions
from windrow.pipeline.shard.prefetch_loop import Walk
from windrow.pipeline.shard.run_queue import Convert, EpochRuns

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

    feed: Feed
    walk: Walk
    runs: EpochRuns
    convert: Callable[[pa.RecordBatch], Iterable[Any]]
    opening: Future[EpochFacts] | None = None

    @property
    def facts(self) -> EpochFacts:
        """What is known of the epoch from its beginning."""
        return self.runs.facts


def open_epoch(
    line: Connection,
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
    is_one = run_rows <= batch_rows
    early = None
    if delivery.early is not None and is_one:
        early = Convert(delivery.early, lambda rows: list(convert(rows)))

    feed = line.open(batch_rows, job.seed)
    walk = line.walk
    runs = None
    if walk is not None:
        runs = walk.offer(at, program.deal(batch_rows, drop_last=delivery.drop_last), depth)
    if walk is not None and runs is not None:
        opening = feed.open_next(at, batch_rows, drop_last=delivery.drop_last)
        walk.begin(runs, early)
        return OpenEpoch(feed, walk, runs, convert, opening)
    if walk is not None:
        # before there is anything that it could take from the next one
        walk.stop()
    facts = feed.open_epoch(at, batch_rows, drop_last=delivery.drop_last)
    portions = Portions(
        is_transformed=bool(job.after), least_batches=-(-max(1, delivery.prefetch_batches) // depth)
    )
    walk = Walk(feed, consumer, after=job.after, depth=depth, portions=portions, leads_on=job.leads_on)
    line.keep(walk)
    return OpenEpoch(feed, walk, walk.start(facts, early), convert)


def _convert_span(delivery: Delivery, check: Check | None, span: pa.RecordBatch) -> Iterable[Any]:
    if check is not None:
        # the schema of what transforms return is known with their rows
        check(span.schema, {})
    return delivery.convert(span)
