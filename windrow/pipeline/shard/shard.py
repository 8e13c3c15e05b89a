"""The shard: the stream that one trainer consumes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from windrow.core.errors import PlanError, StateError
from windrow.core.source import RowOrigin
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.checkpoint.skip_steps import skip_steps
from windrow.pipeline.checkpoint.state import State, describe_stream, resume
from windrow.pipeline.coordinator.stats import Stats
from windrow.pipeline.delivery.batch_iterator import BatchIterator
from windrow.pipeline.delivery.iteration_methods import Deliverable, Delivery, check_drop_last, check_number
from windrow.pipeline.executors.base import EpochFacts, Session
from windrow.pipeline.executors.resolve import resolve_executor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.unequal_steps import find_unequal_steps
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.epoch import Epoch
from windrow.pipeline.shard.epoch_reader import start_reading
from windrow.pipeline.shard.open_epoch import open_epoch
from windrow.pipeline.shard.position import Position
from windrow.shuffle.order.shard_assignment import Equal, ShardAssignment, check_equal

__all__ = ["Shard", "open_shard", "open_shards"]


def open_shards(
    job: Job,
    shards: int,
    *,
    equal: Equal = False,
    locality_hints: Sequence[Any] | None = None,
    start: Cursor = Cursor(),
) -> list[Shard]:
    """Make the shards of a job, all served by one run."""
    program = Program(job, shards, check_equal(equal), tuple(range(shards)))
    session = resolve_executor(job.options.executor).session(program, locality_hints)
    return [Shard(program, session, shard, start) for shard in range(shards)]


def open_shard(
    job: Job, *, rank: int, world_size: int, equal: Equal = False, start: Cursor = Cursor()
) -> Shard:
    """Make one shard of a job, served by a run of its own in this process."""
    program = Program(job, world_size, check_equal(equal), (rank,))
    session = resolve_executor(job.options.executor).session(program, None)
    return Shard(program, session, rank, start)


class Shard(Deliverable):
    """The stream that one trainer consumes: made by ``split``, ``iterator`` or ``shard``.

    A shard can be sent to another process, and reads there. It is iterated once at a
    time: epoch by epoch with `iter_epochs`, or directly, where each ``iter_*`` call
    reads the next epoch.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile, windrow
    >>> path = tempfile.mkdtemp() + "/rows.parquet"
    >>> pq.write_table(pa.table({"x": list(range(6))}), path)
    >>> pipe = windrow.read_parquet(path).repeat(2).random_shuffle_each_window(seed=7)
    >>> with pipe.iterator() as shard:
    ...     for epoch in shard.iter_epochs():
    ...         print(epoch.number, sorted(row["x"] for row in epoch.iter_rows()))
    0 [0, 1, 2, 3, 4, 5]
    1 [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, program: Program, session: Session, shard: int, start: Cursor = Cursor()) -> None:
        self._program = program
        self._session = session
        self._shard = shard
        self._start = start
        self._left_epoch: int | None = None
        self._closed = False
        self._prepare()

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._line = Connection(self._session, self._shard)
        self._position = Position(self._start, self._line, left_epoch=self._left_epoch)
        self._stream: State | None = None
        self._latest: ShardAssignment | None = None
        self._latest_epoch = 0
        self._lineage: Lineage | None = None
        self._consumer = Consumer(self._shard)

    def __repr__(self) -> str:
        return f"Shard({self._shard} of {self._program.shards}, at epoch {self._position.epoch})"

    def __getstate__(self) -> dict[str, Any]:
        if self._position.iterator is not None:
            raise PlanError(
                f"shard {self._shard} cannot be sent elsewhere while it is being iterated (epoch "
                f"{self._position.at.epoch}): finish or close() the iterator first"
            )
        self._line.rest()
        return {
            "_program": self._program,
            "_session": self._session.export(self._shard),
            "_shard": self._shard,
            "_start": self._position.at,
            "_left_epoch": self._position.left_epoch,
            "_closed": self._closed,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __enter__(self) -> Shard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def iter_epochs(self) -> Iterator[Epoch]:
        """Iterate over the epochs from where the shard is; a second call goes on from there.

        An epoch may be left early; the next one then begins at its first row. The epoch counts as
        consumed once the next one is asked for: a state taken before that names what follows the last
        batch that was handed out.

        Yields
        ------
        Epoch
        """
        while not self._closed:
            self._position.go_on()
            if not self._has_next():
                return
            number, moves = self._position.at.epoch, self._position.moves
            yield Epoch(self, number)
            # whoever closed the shard has asked for no other epoch
            if moves == self._position.moves and not self._closed:
                self._position.leave(number)

    def steps_per_epoch(self, batch_size: int, *, drop_last: bool = False) -> int:
        """Batches that this shard gets in a whole epoch.

        Raises
        ------
        PlanError
            While row counts are unknown (a filter, or a transform that changes them): before
            the first epoch has been read; for a bad argument.
        """
        batch_rows = check_number("batch_size", batch_size, 1)
        check_drop_last(drop_last)
        total = self._total_rows()
        if total is None:
            raise PlanError(
                "how many rows an epoch has is not known before a filter or a row-changing transform has "
                "run, or corrupt blocks are left out: read an epoch first, or use count() on the dataset, "
                "which reads it once where the footers do not tell"
            )
        return self._program.assignment(batch_rows, drop_last=drop_last).steps(total, self._shard)

    def state_dict(self) -> dict[str, Any]:
        """What has been consumed, to go on from later, anywhere, with any number of shards.

        It names what follows the last batch that was handed out, however the loop ended: ``break``,
        an exception, or `close`. It is the same on all shards at the same step, holds JSON values only
        and takes less than 1 KB. An epoch that was left early counts as consumed once the next one is
        asked for, by an ``iter_*`` call or ``next()`` on `iter_epochs`, or `skip_epoch` says so.
        Blocks that ``on_error="skip"`` has left out are named by number, as far as every shard has come
        to them.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> pipe = windrow.read_parquet("numbers.parquet").repeat(2)
        >>> batches = iter((shard := pipe.iterator()).iter_batches(batch_size=2))
        >>> next(batches)["x"].tolist()
        [0, 1]
        >>> state = shard.state_dict()
        >>> [batch["x"].tolist() for batch in pipe.iterator(state_dict=state).iter_batches(batch_size=4)]
        [[2, 3, 4, 5]]
        """
        cursor = self._position.consumed
        if self._stream is None:
            self._stream = describe_stream(self._program.job)
        shards, batch_size = cursor.assigned or (self._program.shards, None)
        return self._stream.at(cursor, shards=shards, batch_size=batch_size).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, admit_appended: bool = False) -> None:
        """Go on from a state: the next ``iter_*`` call reads the rest of its epoch.

        Load the same state into all shards of a ``split``. Where the chain's seed was drawn, it
        adopts the state's.

        Parameters
        ----------
        state_dict
            From `state_dict`, of any shard, with any number of shards and batch size.
        admit_appended
            Accept data that has grown since by files after those of then, in listing order;
            the state must be at an epoch's start.

        Raises
        ------
        StateError
            If an epoch is open, or the state is corrupt or of another stream; says what differs.
        """
        with self._lock:
            if self._position.iterator is not None:
                raise StateError(
                    f"shard {self._shard} is being iterated (epoch {self._position.at.epoch}): finish or "
                    "close() the iterator before a state is loaded"
                )
            job, cursor = resume(self._program.job, state_dict, admit_appended=admit_appended)
            self._program = self._program.with_seed(job.seed)
            # what was read before tells nothing of how the state's epoch was dealt
            self._stream = self._lineage = self._latest = None
            # what is still under way for the place before is not heard any more
            self._line.drop()
            self._position.move(cursor)

    def skip_epoch(self) -> None:
        """Leave out the rest of the current epoch: from now on states name the next one's beginning.

        The current epoch is the one that is being iterated, that was left early, on its last batch too,
        or else that would be read next. Call it on all shards. To leave an epoch and go on, ``break`` is
        enough; this is for a checkpoint between the two.

        Raises
        ------
        PlanError
            If all epochs have been read.

        Examples
        --------
        >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
        >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
        >>> shard = windrow.read_parquet("numbers.parquet").repeat(2).iterator()
        >>> for batch in shard.iter_batches(batch_size=2):
        ...     break
        >>> shard.state_dict()["row"]
        2
        >>> shard.skip_epoch()
        >>> state = shard.state_dict()
        >>> state["epoch"], state["row"]
        (1, 0)
        """
        with self._lock:
            self._position.settle()
            epoch, epochs = self._position.current, self._program.job.epochs
            if epochs is not None and epoch >= epochs:
                raise PlanError(
                    f"all {epochs} epochs of shard {self._shard} have been read: there is none to skip"
                )
            self._position.leave(epoch)

    def skip_batches(self, count: int, *, batch_size: int | None = None, drop_last: bool = False) -> None:
        """Go ahead by some steps without reading them, across epochs too: for loss spikes.

        It counts from behind the last batch that was handed out; the next ``iter_*`` call goes on from
        there, also in an epoch that was left early. Call it with the same arguments on all shards.

        Parameters
        ----------
        count
            Steps, of one batch for each shard.
        batch_size
            Rows of a batch; None: as read last, or as the loaded state was.
        drop_last
            Whether epochs have no short last step.

        Raises
        ------
        PlanError
            If an epoch is open, or an argument is wrong.

        Notes
        -----
        Where the rows of an epoch are not known (a filter that was not counted yet), the steps
        end with it, and what is skipped is read to be counted.
        """
        with self._lock:
            self._check_free()
            at = self._position.at
            rows = self._batch_rows if batch_size is None else batch_size
            cursor = skip_steps(
                self._program,
                at,
                count,
                batch_rows=rows,
                drop_last=drop_last,
                total=self._total_rows(),
            )
            if self._position.left:
                # the run was told that nothing more of this epoch is needed
                self._line.drop()
            self._position.move(cursor.leaving_out(at.corrupt))

    def step_lineage(self, step: int) -> list[RowOrigin]:
        """Where the rows of this shard's batch of a step are stored, from the plan.

        Parameters
        ----------
        step
            Which step of the epoch that is being read, or was read last; from 0.

        Raises
        ------
        PlanError
            Before anything is read, if this shard has no such step, or a transform makes rows
            that are stored nowhere.
        """
        if self._latest is None:
            raise PlanError("provenance() tells of the epoch that is read or was read last: read one first")
        corrupt = self._position.corrupt
        if self._lineage is None or self._lineage.corrupt != corrupt:
            self._lineage = Lineage(self._program.job, corrupt)
        rows = self._latest.step_of(step, self._shard, self._lineage.total)
        if rows is None:
            raise PlanError(f"shard {self._shard} has no step {step!r} in epoch {self._latest_epoch}")
        return self._lineage.find(self._latest_epoch, rows)

    def stats(self) -> Stats:
        """What the shard has received so far, and what the run behind it has done."""
        self._position.settle()
        run = self._line.run_stats(spans=True)
        tally = self._position.tally
        return Stats(
            shard=self._shard,
            epochs=self._position.epochs,
            batches=tally.batches,
            rows=tally.rows,
            bytes=tally.bytes,
            wait_seconds=tally.wait_seconds,
            run=run,
            spans=tuple(self._consumer.spans),
        )

    def close(self) -> None:
        """Read no more; lets go of everything that was held for this shard."""
        self._closed = True
        self._position.settle()
        iterator = self._position.iterator
        try:
            if iterator is not None:
                iterator.close()
        finally:
            self._line.close()

    # --- delivering

    def _deliver(self, delivery: Delivery) -> BatchIterator:
        if not self._closed and not self._has_next():
            raise PlanError(
                f"all {self._program.job.epochs} epochs of shard {self._shard} have been read: "
                "use repeat(...) for more"
            )
        return self._begin(delivery)

    def _begin(self, delivery: Delivery) -> BatchIterator:
        with self._lock:
            self._check_free()
            self._check(delivery)
            opened = self._position.upcoming
            try:
                epoch = open_epoch(self._line, self._program, delivery, self._consumer, at=opened)
            except (PlanError, StateError):
                raise
            except BaseException:
                self._line.drop()
                raise
            self._latest, self._latest_epoch = epoch.facts.assignment, epoch.facts.epoch
            self._warn(epoch.facts)
            reading = start_reading(
                self._position, self._program, epoch, delivery, self._consumer, opened=opened
            )
            iterator = BatchIterator(reading)
            self._position.enter(iterator, opened)
            return iterator

    def _check_free(self) -> None:
        if self._closed:
            raise PlanError(f"shard {self._shard} has been closed")
        if self._position.iterator is not None:
            raise PlanError(
                f"shard {self._shard} is being iterated (epoch {self._position.at.epoch}): a shard is read once "
                "at a time; finish or close() the other iterator first"
            )

    def _check(self, delivery: Delivery) -> None:
        job = self._program.job
        if delivery.check is not None and not job.before and not job.after:
            source = job.source
            delivery.check(source.schema, source.null_counts if job.rows_stated else {})

    def _warn(self, facts: EpochFacts) -> None:
        for line in (*facts.user_warnings, *find_unequal_steps(facts, self._program.shards)):
            warnings.warn(line, RuntimeWarning, stacklevel=4)

    def _has_next(self) -> bool:
        epochs = self._program.job.epochs
        return not self._closed and (epochs is None or self._position.upcoming.epoch < epochs)

    @property
    def _batch_rows(self) -> int | None:
        if self._latest is not None:
            return self._latest.batch_rows
        assigned = self._position.at.assigned
        return None if assigned is None else assigned[1]

    def _total_rows(self) -> int | None:
        """Rows of an epoch, all shards together, or None before they have been counted."""
        if self._program.job.rows_known:
            return int(self._program.stored_rows.sum())
        return self._line.run_stats(spans=False).epoch_rows
