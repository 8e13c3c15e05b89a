"""A shard's connection to the coordinator: opened on first read, opens epochs (and packs their rows), closed once."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.errors import PlanError, StallError, StateError
from windrow.core.finalizers import in_background
from windrow.core.user_warnings import warn_user
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.delivery.batch_formats import cut_batches
from windrow.pipeline.delivery.delivery import Delivery
from windrow.pipeline.delivery.wanted import EVERYTHING, Wanted
from windrow.pipeline.executors.base import CoordinatorClient, Session, waiting_of
from windrow.pipeline.executors.preparation import Preparation
from windrow.pipeline.executors.replicas.client import ReplicaClient
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import RUN_BYTES, Program
from windrow.pipeline.shard.balance_checks import check_balance, check_groups
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.epoch_runs import Converter
from windrow.pipeline.shard.partial_runs import Portions
from windrow.pipeline.shard.prefetch_loop import PrefetchLoop
from windrow.pipeline.shard.run_reader import ConvertSpan, RunReader
from windrow.pipeline.shard.run_record import RunRecord
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.sequence_packing import SequencePacking, transform_sequences
from windrow.shuffle.order.batching import Batching

_JOIN_SECONDS = 1.0


def _find_unequal_steps(facts: EpochFacts, shards: int) -> Iterator[str]:
    """Yield a warning if torch.distributed is in use and unequal steps would make it hang."""
    assignment, total = facts.assignment, facts.total
    if shards == 1 or total is None or "torch.distributed" not in sys.modules or assignment.ends_by_tokens:
        return
    trainers = shards // assignment.workers
    steps = {
        sum(assignment.steps(total, shard) for shard in range(trainer, shards, trainers))
        for trainer in range(trainers)
    }
    distributed = sys.modules["torch.distributed"]
    if len(steps) > 1 and distributed.is_available() and distributed.is_initialized():
        yield (
            f"shards will have {min(steps)} or {max(steps)} steps in epoch {facts.epoch}, and collective "
            "operations of torch.distributed would hang: use equal=True or equal='pad' in split() or shard(), "
            "or drop_last=True"
        )


class PackedSequences:
    """The sequences of one epoch of a shard, which come in spans of whole batches.

    Transforms get as many batches at a time as make about `RUN_BYTES` afterwards, and at first a single one. The size
    of a transformed token is given to ``report`` where it has grown.
    """

    def __init__(
        self,
        packing: SequencePacking,
        after: Sequence[MapBatches],
        batch_size: int,
        report: Callable[[float], None],
    ) -> None:
        self._packing = packing
        self._after = after
        self._batch_size = batch_size
        self._report = report
        self._row_bytes = 0.0

    def of(self, tokens: pa.RecordBatch, origin: str, *, is_batch: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the sequences of a span, or of a batch, then all at once; ``origin`` tells whose they are."""
        sequences = self._packing.sequences(tokens)
        if not self._after:
            yield sequences
            return
        at, batch_rows = 0, sequences.num_rows if is_batch else self._batch_size
        while at < sequences.num_rows:
            fitting = int(RUN_BYTES / (batch_rows * self._row_bytes)) if self._row_bytes else 1
            size = batch_rows * max(1, fitting)
            found = transform_sequences(
                sequences.slice(at, size), self._after, f"sequences of pack, {origin}"
            )
            self._measure(found)
            yield found
            at += size

    def _measure(self, found: pa.RecordBatch) -> None:
        row_bytes = arrow_bytes(found) / found.num_rows
        if row_bytes > self._row_bytes:
            self._row_bytes = row_bytes
            self._report(row_bytes / self._packing.seq_len)


class Connection:
    """One shard's coordinator client and prefetch loop."""

    def __init__(self, session: Session, consumer: Consumer) -> None:
        self._session = session
        self._consumer = consumer
        # shards that were made together share one
        self.record = RunRecord(session)
        self._resources: _Resources | None = None
        self._closer: weakref.finalize[Any, Any] | None = None
        self._last_stats: RunStats | None = None
        self._was_open = self._is_closed = False
        # what prefetched runs hold of each row at least
        self._wanted = EVERYTHING

    def open(self, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Return the coordinator client, creating it if the shard is not connected."""
        if self._resources is None:
            self._was_open = True
            shard_client = self._session.shard_client(self._consumer.shard, batch_rows, seed)
            ended = self.record.add_reader(self, self._consumer.spans)
            self._resources = _Resources(shard_client, self._consumer, self.record, ended)
            self._closer = weakref.finalize(self, in_background, self._resources.drop)
        return self._resources.shard_client

    @property
    def prefetch_loop(self) -> PrefetchLoop | None:
        """The latest prefetch loop, which can already be in an epoch that the consumer has not opened."""
        return None if self._resources is None else self._resources.prefetch_loop

    def open_epoch(self, program: Program, delivery: Delivery, *, at: Cursor) -> RunReader:
        """Start to read an epoch at a cursor; after an error that is not the user's, the connection is closed."""
        job, source = program.job, program.job.source
        if delivery.balance is not None:
            check_balance(job, delivery.balance)
        if delivery.check is not None and job.delivers_stored_rows:
            schema = delivery.selection.of_schema(source.schema)
            delivery.check(schema, source.null_counts if job.rows_stated else {})
        try:
            reader = self._open_epoch(program, delivery, at)
        except (PlanError, StateError):
            raise
        except BaseException:
            self.disconnect()
            raise
        for line in (*reader.facts.user_warnings, *_find_unequal_steps(reader.facts, program.shards)):
            warn_user(line)
        return reader

    def _open_epoch(self, program: Program, delivery: Delivery, at: Cursor) -> RunReader:
        """Adopt the prefetch loop that has already moved on to the epoch, or start a new one."""
        job, batch_size = program.job, delivery.batch_rows
        check_groups(at, delivery.balance)
        if delivery.balance is not None and delivery.balance.budget is not None:
            batch_size = program.batch_size(delivery.balance.budget)
        batching = Batching(batch_size, delivery.drop_last, delivery.balance)
        batch_rows = program.batch_rows(batch_size)
        run_rows = program.run_rows(batch_size)
        runs_per_batch = max(1, batch_rows // run_rows)
        ahead = -(-delivery.prefetch_batches * batch_rows // run_rows)
        depth = max(2, ahead + runs_per_batch)
        shard_client = self.open(batch_size, job.seed)
        convert: ConvertSpan = partial(_convert_span, delivery, job)
        if job.packing is not None:
            after = job.after if isinstance(shard_client, ReplicaClient) else shard_client.after
            sequences = PackedSequences(job.packing, after, delivery.batch_rows, shard_client.note_delivered)
            convert = partial(_convert_tokens, convert, sequences, f"shard {self._consumer.shard}")
        # many small batches per run are cheaper to convert in the consumer than in the worker threads
        is_single_batch = run_rows <= batch_rows
        converter = None
        # transforms behind packing are applied to what is delivered, and no run is sure to be that
        is_even = delivery.balance is None or delivery.balance.divides_evenly
        if (
            delivery.converter_key is not None
            and is_single_batch
            and is_even
            and not (job.packing and job.after)
        ):
            converter = Converter(delivery.converter_key, lambda rows: list(convert(rows, None)))

        is_replica = isinstance(shard_client, ReplicaClient)
        wanted = _find_wanted(job, delivery) if is_replica else EVERYTHING
        prefetch_loop, runs, opening = self.prefetch_loop, None, None
        if prefetch_loop is not None and self._wanted.covers(wanted):
            runs = prefetch_loop.find_epoch(at, program.assignment(batching), depth)
        if prefetch_loop is not None and runs is not None:
            opening = shard_client.open_next(at, batching)
            prefetch_loop.begin(runs, converter)
        else:
            if prefetch_loop is not None:
                # stop the old loop before the new epoch has windows that it could take
                prefetch_loop.stop()
            self._wanted = wanted
            shard_client.want(wanted)
            facts = shard_client.open_epoch(at, batching)
            # with packing, runs hold tokens, and transforms are applied to sequences later
            after = () if job.packing is not None or is_replica else shard_client.after
            portions = Portions(
                is_transformed=bool(after), min_batches=-(-max(1, delivery.prefetch_batches) // depth)
            )
            prefetch_loop = PrefetchLoop(
                shard_client,
                self._consumer,
                preparation=Preparation(after, str(self._consumer.shard), len(program.members)),
                seed=job.seed or 0,
                depth=depth,
                portions=portions,
                leads_on=job.leads_on,
            )
            self._set_prefetch_loop(prefetch_loop)
            runs = prefetch_loop.start(facts, converter)
        return RunReader(
            shard_client,
            prefetch_loop,
            runs,
            convert,
            consumer=self._consumer,
            waiting=waiting_of(job.options),
            opening=opening,
            profiled=delivery.background or (job.packing is not None and bool(job.after)),
        )

    def _set_prefetch_loop(self, prefetch_loop: PrefetchLoop) -> None:
        resources = self._resources
        if resources is not None:
            resources.prefetch_loop = prefetch_loop
        if resources is None or resources is not self._resources:
            # another thread has closed the connection in the meantime
            prefetch_loop.stop()

    def stop_prefetch(self) -> None:
        """Stop prefetching into the next epoch, since another process may read that epoch."""
        if self._resources is not None and self._resources.prefetch_loop is not None:
            self._resources.prefetch_loop.stop()

    def run_stats(self, *, spans: bool) -> RunStats:
        """Return the job's statistics; once disconnected, the last ones fetched with spans.

        Those of a shard that another process reads come from its session.
        """
        if self._resources is None:
            if self._last_stats is None:
                return self._session.run_stats(spans=spans) or RunStats()
            return self._last_stats
        stats = self._resources.shard_client.run_stats(spans=spans)
        if spans:
            self._last_stats = stats
            self.record.note_stats(stats)
        return stats

    def record_stats(self) -> RunStats | None:
        """Fetch the statistics, so that the run's record has them; None if the shard is not connected."""
        # the record's spans have a wait once it is known what it was for
        self._consumer.totals.settle()
        return None if self._resources is None else self.run_stats(spans=True)

    def disconnect(self) -> None:
        """Close the connection without fetching statistics."""
        resources, closer = self._resources, self._closer
        self._resources = self._closer = None
        # two threads can close a shard simultaneously: the one that detaches the finalizer closes the client
        if resources is not None and closer is not None and closer.detach() is not None:
            resources.end()

    def close(self) -> None:
        """Close the connection, and keep the job's final statistics if the coordinator answers."""
        is_first, self._is_closed = not self._is_closed, True
        note_unread = getattr(self._session, "note_unread", None)
        if is_first and not self._was_open and note_unread is not None:
            # other replicas of the shard would wait for this one
            note_unread(self._consumer.shard)
        try:
            with suppress(StallError):
                self.run_stats(spans=True)
        finally:
            self.disconnect()


class _Resources:
    """What must be released when the connection closes; does not refer to the `Connection`."""

    def __init__(
        self, shard_client: CoordinatorClient, consumer: Consumer, record: RunRecord, ended: threading.Event
    ) -> None:
        self.shard_client = shard_client
        self._consumer = consumer
        self._record, self._ended = record, ended
        self.prefetch_loop: PrefetchLoop | None = None

    def drop(self) -> None:
        self._record.note_last_stats(self.shard_client)
        self.end()

    def end(self) -> None:
        self._ended.set()
        prefetch_loop = self.prefetch_loop
        # The callbacks run last to first, each even if another raises: a client that is not closed never ends its
        # threads.
        with ExitStack() as calls:
            if prefetch_loop is not None:
                calls.callback(prefetch_loop.join, _JOIN_SECONDS)
            calls.callback(lambda: self.shard_client.close(self._consumer.report()))
            if prefetch_loop is not None:
                calls.callback(prefetch_loop.stop)


def _find_wanted(job: Job, delivery: Delivery) -> Wanted:
    """What a reader takes of the rows of runs."""
    if job.after or (job.packing is not None and job.packing.boundaries):
        # transforms get whole rows, and where documents begin is found in whole sequences
        return EVERYTHING
    wanted = Wanted.by([delivery.selection], 0 if job.packing is None else job.packing.seq_len)
    if job.packing is not None and delivery.balance is not None and delivery.balance.microbatches > 1:
        # a sequence that lies in two windows is divided by other microbatches, so places do not tell where it begins
        return wanted.with_whole_sequences()
    return wanted


def _convert_span(
    delivery: Delivery, job: Job, span: pa.RecordBatch, rows: Sequence[int] | None
) -> Iterable[Any]:
    span = delivery.selection.apply(span)
    if delivery.check is not None and not job.delivers_stored_rows:
        # the schema of transformed rows is known only once there are rows
        delivery.check(span.schema, {})
    return delivery.convert(span, delivery.batch_rows if rows is None else rows)


def _convert_tokens(
    convert: ConvertSpan,
    sequences: PackedSequences,
    origin: str,
    span: pa.RecordBatch,
    tokens: Sequence[int] | None,
) -> Iterable[Any]:
    if tokens is None:
        for batches in sequences.of(span, origin):
            yield from convert(batches, None)
        return
    for part in cut_batches(span, tokens):
        for batch in sequences.of(part, origin, is_batch=True):
            yield from convert(batch, [batch.num_rows])
