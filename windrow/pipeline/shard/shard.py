"""The shard: the stream that one trainer consumes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from windrow.core.errors import PlanError, StateError
from windrow.core.source import RowOrigin
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.checkpoint.mixed_state import change_shares, describe_mixture
from windrow.pipeline.checkpoint.resume import resume, skip_steps
from windrow.pipeline.checkpoint.state import State, describe_stream
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.delivery.delivery import Delivery, check_drop_last, check_number
from windrow.pipeline.executors.base import Session
from windrow.pipeline.loaders.loader_methods import LoaderMethods
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.mixture import MixtureLeg
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.epoch import Epoch, EpochBatches, Position
from windrow.pipeline.shard.epoch_reader import EpochReader
from windrow.pipeline.shard.observing_methods import ObservingMethods
from windrow.pipeline.shard.worker_shards import WorkerShards


class Shard(LoaderMethods, ObservingMethods):
    """The stream that one trainer consumes, made by ``split``, ``iterator`` or ``shard``.

    A shard can be pickled and read in another process. It supports one iterator at a time: either epoch
    by epoch with `iter_epochs`, or directly, where each ``iter_*`` call reads the next epoch.

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

    def __init__(
        self,
        program: Program,
        session: Session,
        shard: int,
        start: Cursor = Cursor(),
        part: tuple[int, int] | None = None,
    ) -> None:
        self._program = program
        self._session = session
        self._shard = shard
        self._start = start
        # on a mesh with sequence dimensions: which part of each sequence is delivered, and the number of parts
        self._part = part
        self._left_epoch: int | None = None
        self._closed = False
        self._prepare()

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        replica = getattr(self._session, "replica_name", lambda _: "")(self._shard)
        self._consumer = Consumer(self._shard, self._program.job.options.profile, replica)
        self._connection = Connection(self._session, self._consumer)
        is_mixture = self._program.job.mixture is not None
        self._position = Position(
            self._start, self._connection, left_epoch=self._left_epoch, is_one=is_mixture
        )
        # set once as_torch_dataset() has taken the shard over
        self._divided: WorkerShards | None = None
        self._stream: State | None = None
        self._latest: EpochFacts | None = None
        self._lineage: Lineage | None = None

    def __repr__(self) -> str:
        return f"Shard({self._shard} of {self._program.shards}, at epoch {self._position.epoch})"

    def __getstate__(self) -> dict[str, Any]:
        if self._position.iterator is not None:
            raise PlanError(
                f"shard {self._shard} cannot be pickled while it is being iterated (epoch "
                f"{self._position.at.epoch}): finish or close() the iterator first"
            )
        self._connection.stop_prefetch()
        return {
            "_program": self._program,
            "_session": self._session.export(self._shard),
            "_shard": self._shard,
            "_start": self._position.at,
            "_part": self._part,
            "_left_epoch": self._position.left_epoch,
            "_closed": self._closed,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __enter__(self) -> Shard:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def iter_epochs(self) -> Iterator[Epoch]:
        """Iterate over the remaining epochs; a second call continues where the first stopped.

        You can break out of an epoch early; the next epoch then starts at its first row. The abandoned
        epoch counts as consumed once the next one is requested. Until then, `state_dict` points just
        behind the last batch that was delivered.

        Yields
        ------
        Epoch
        """
        while not self._closed:
            self._position.advance()
            if not self._has_next():
                return
            number, moves = self._position.at.epoch, self._position.moves
            yield Epoch(self, number)
            if self._program.job.mixture is not None:
                # it has one, which goes on where it was left
                return
            # closing the shard does not request another epoch
            if moves == self._position.moves and not self._closed:
                self._position.leave(number)

    def steps_per_epoch(self, batch_size: int, *, drop_last: bool = False) -> int:
        """Number of batches of this shard in a whole epoch.

        Raises
        ------
        PlanError
            If an argument is invalid, or row counts are not known yet: with a filter, a transform that
            changes row counts, `pack`, ``on_error="skip"`` or a format without row counts, they are known after
            the first epoch.
        """
        batch_rows = check_number("batch_size", batch_size, 1)
        check_drop_last(drop_last)
        total = self._total_rows()
        if total is None:
            raise PlanError(
                "the number of rows of an epoch is not known yet, because a filter, a row-changing transform, pack(), "
                'on_error="skip" or a format that does not store row counts (such as CSV or JSON) determines it '
                "while reading: read an epoch first. (count() on the dataset returns the number of rows; it "
                "reads the data once where the metadata does not suffice.)"
            )
        return self._program.assignment(batch_rows, drop_last=drop_last).steps(total, self._shard)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint of the progress, to resume anywhere and with any number of shards.

        The state points just behind the last batch that was delivered, whether the loop ended with
        ``break``, an exception or `close`. It is identical on all shards at the same step, holds only JSON
        values and takes less than 1 KB. An epoch that was abandoned early counts as consumed once the next
        one is requested, by an ``iter_*`` call or ``next()`` on `iter_epochs`, or once `skip_epoch` is
        called. The state lists the numbers of the blocks skipped by ``on_error="skip"`` that every shard
        has reached.

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
        if self._divided is not None:
            raise PlanError(
                f"shard {self._shard} is read through as_torch_dataset(): the dataset's state_after(batches) returns "
                "the state"
            )
        cursor = self._position.consumed
        if self._stream is None:
            self._stream = describe_stream(self._program.job)
        shards, batch_size = cursor.assigned or (self._program.shards, None)
        mixture = self._program.job.mixture
        mixed = None
        if mixture is not None:
            at = cursor.mixed or mixture.start
            mixed = describe_mixture(mixture, MixtureLeg(mixture, at, cursor.row, 1), cursor.row)
        return self._stream.at(cursor, shards=shards, batch_size=batch_size, mixture=mixed).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], *, allow_appended: bool = False) -> None:
        """Resume from a state: the next ``iter_*`` call reads the rest of its epoch.

        Load the same state into all shards of a ``split``. A pipeline whose seed was drawn at random adopts
        the state's seed.

        Parameters
        ----------
        state_dict
            A result of `state_dict`, from any shard, with any number of shards and any batch size.
        allow_appended
            Accept data to which files were appended since, after the earlier ones in listing order; the
            state must be at the start of an epoch.

        Raises
        ------
        StateError
            If an epoch is open, or the state is corrupt or belongs to another stream; the message names
            the difference.
        """
        with self._lock:
            if self._position.iterator is not None:
                raise StateError(
                    f"shard {self._shard} is being iterated (epoch {self._position.at.epoch}): finish or "
                    "close() the iterator before you load a state"
                )
            job, cursor = resume(self._program.job, state_dict, allow_appended=allow_appended)
            self._program = self._program.with_seed(job.seed)
            # earlier epochs do not determine the shard assignment of the state's epoch
            self._stream = self._lineage = self._latest = None
            # a new connection ignores late reports from the old position
            self._connection.disconnect()
            self._position.move(cursor)

    def set_shares(self, shares: Mapping[str, float]) -> None:
        """Change the shares of a mixture's sources from the next step on.

        Call it on all shards after the same step, also within a loop over batches, which goes on with the new shares.
        No row is lost or comes twice. The state has the new shares at once. The windows that are held are prepared
        again.

        Parameters
        ----------
        shares
            By source name, numbers of 0 or more, of which only the proportions count.

        Raises
        ------
        PlanError
            If the pipeline is no mixture, a share is invalid, or no source has the name. If another shard has set other
            shares, or after another step, the next batch raises a `StateError` on the shard that comes later.

        Examples
        --------
        >>> import windrow
        >>> easy, hard = (windrow.range(1_000).repeat() for _ in range(2))
        >>> pipe = windrow.mixture({"easy": easy, "hard": hard}, {"easy": 1}, seed=7, source_column="of")
        >>> shard = pipe.iterator()
        >>> for step, batch in zip(range(3), shard.iter_batches(batch_size=100)):
        ...     print(int((batch["of"] == "hard").sum()))
        ...     shard.set_shares({"easy": 3 - step, "hard": 1 + step})
        0
        25
        50
        """
        mixture = self._program.job.mixture
        if mixture is None:
            raise PlanError("set_shares() is for mixtures, as windrow.mixture() makes them")
        with self._lock:
            if self._divided is not None:
                raise PlanError(
                    f"set_shares(): shard {self._shard} is read by DataLoader workers, each at a step of its own; "
                    "read it through iter_torch_batches()"
                )
            rows = self._batch_size or 1
            step_rows = self._program.shards * self._program.batch_rows(rows)
            self._position.change(change_shares(mixture, self._position.consumed, step_rows, shares))

    def skip_epoch(self) -> None:
        """Skip the rest of the current epoch: states now point at the start of the next one.

        The current epoch is the one being iterated; else the one that was abandoned early, even at its
        last batch; else the one that would be read next. Call it on all shards. To abandon an epoch and
        continue with the next one, ``break`` is enough; `skip_epoch` is for a checkpoint between the two.

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
            self._position.end_dropped_readers()
            epoch, epochs = self._position.current, self._program.job.epochs
            if epochs is not None and epoch >= epochs:
                raise PlanError(
                    f"all {epochs} epochs of shard {self._shard} have been read: there is no epoch to skip"
                )
            self._position.leave(epoch)

    def skip_batches(self, count: int, *, batch_size: int | None = None, drop_last: bool = False) -> None:
        """Skip some steps without reading them, also across epochs, for example after a loss spike.

        Counting starts behind the last batch that was delivered, even in an epoch that was abandoned early;
        the next ``iter_*`` call starts behind the skipped steps. Call it with the same arguments on all
        shards.

        Parameters
        ----------
        count
            Number of steps; a step is one batch of every shard.
        batch_size
            Rows per batch; None: that of the last ``iter_*`` call, or of the loaded state.
        drop_last
            Whether epochs omit a short last step.

        Raises
        ------
        PlanError
            If an epoch is open, or an argument is invalid.

        Notes
        -----
        If the row count of the epoch is not known yet (a filter, ``on_error="skip"`` or a format without row
        counts, before the first epoch was read), skipping stops at the end of the epoch, and the skipped rows
        are read to be counted.
        """
        with self._lock:
            self._check_free()
            at = self._position.at
            rows = self._batch_size if batch_size is None else batch_size
            cursor = skip_steps(
                self._program, at, count, batch_rows=rows, drop_last=drop_last, total=self._total_rows()
            )
            if self._position.is_left:
                # the shard already acknowledged all of this epoch
                self._connection.disconnect()
            self._position.move(cursor.skipping(at.corrupt))

    def step_lineage(self, step: int) -> list[RowOrigin]:
        """Return where the rows of this shard's batch of a step are stored, computed from the plan.

        Parameters
        ----------
        step
            The step, from 0, of the epoch that is being read, or was read last.

        Raises
        ------
        PlanError
            If nothing was read yet, this shard has no such step, or a transform makes rows that are not
            stored anywhere.
        """
        latest = self._latest
        if latest is None:
            raise PlanError("step_lineage() refers to the epoch that was read last: read an epoch first")
        corrupt = self._position.corrupt
        if self._lineage is None or self._lineage.corrupt != corrupt:
            self._lineage = Lineage(self._program.job, corrupt)
        rows = latest.assignment.rows_of_step(step, self._shard, self._lineage.total)
        if rows is None:
            raise PlanError(f"shard {self._shard} has no step {step!r} in epoch {latest.epoch}")
        return self._lineage.find(latest.epoch, rows)

    def is_at(self, cursor: Cursor) -> bool:
        """Whether the next ``iter_*`` call would start at a cursor."""
        return not self._closed and self._position.upcoming == cursor

    def close(self) -> None:
        """Stop reading and release everything that is held for this shard."""
        self._closed = True
        if self._divided is not None:
            self._divided.close()
        self._position.end_dropped_readers()
        iterator = self._position.iterator
        try:
            if iterator is not None:
                iterator.close()
        finally:
            self._connection.close()

    # --- delivery

    def _job(self) -> Job:
        return self._program.job

    def _deliver(self, delivery: Delivery) -> EpochBatches:
        if not self._closed and not self._has_next():
            if self._program.job.mixture is not None:
                raise PlanError(
                    f"shard {self._shard} has read the mixture to its end: use repeat() on its sources, or "
                    "when_exhausted='repeat', for more"
                )
            raise PlanError(
                f"all {self._program.job.epochs} epochs of shard {self._shard} have been read: "
                "use repeat(...) for more"
            )
        return self._begin(delivery)

    def _divide(self) -> WorkerShards:
        with self._lock:
            self._check_free()
            session = self._session.for_processes()
            self._divided = WorkerShards(
                partial(Shard, part=self._part), self._program, session, self._shard, self._position.upcoming
            )
            return self._divided

    def _begin(self, delivery: Delivery) -> EpochBatches:
        delivery = delivery.for_part(self._part)
        with self._lock:
            self._check_free()
            opened, began = self._position.upcoming, time.time()
            reader = self._open_reader(delivery, opened, began)
            go_on = None if self._program.job.mixture is None else partial(self._go_on, delivery)
            iterator = EpochBatches(reader, go_on)
            self._position.enter(iterator, opened)
            return iterator

    def _open_reader(self, delivery: Delivery, opened: Cursor, began: float) -> EpochReader:
        if self._program.job.mixture is not None:
            self._program.open_leg(opened, delivery.batch_rows)
        runs = self._connection.open_epoch(self._program, delivery, at=opened)
        self._latest, took = runs.facts, time.time() - began
        return EpochReader(self._position, self._program, runs, delivery, opened=opened, opening_seconds=took)

    def _go_on(self, delivery: Delivery, iterator: EpochBatches) -> EpochReader | None:
        """Open the next part of a mixture for an iterator that has read one to its end; None if there is none."""
        with self._lock:
            if self._closed or not self._has_next():
                return None
            opened, began = self._position.upcoming, time.time()
            reader = self._open_reader(delivery, opened, began)
            self._position.enter(iterator, opened)
            return reader

    def _check_free(self) -> None:
        if self._closed:
            raise PlanError(f"shard {self._shard} has been closed")
        if self._divided is not None:
            raise PlanError(f"shard {self._shard} is read through as_torch_dataset(): use that dataset only")
        if self._position.iterator is not None:
            raise PlanError(
                f"shard {self._shard} is being iterated (epoch {self._position.at.epoch}): a shard has one iterator "
                "at a time; finish or close() the other iterator first"
            )

    def _has_next(self) -> bool:
        epochs = self._program.job.epochs
        if self._program.job.mixture is not None:
            return not self._closed and self._program.has_rows_at(self._position.upcoming)
        return not self._closed and (epochs is None or self._position.upcoming.epoch < epochs)

    @property
    def _batch_size(self) -> int | None:
        if self._latest is not None:
            return self._latest.assignment.batch_size
        assigned = self._position.at.assigned
        return None if assigned is None else assigned[1]

    def _total_rows(self) -> int | None:
        """Rows of an epoch over all shards, or None before they have been counted."""
        if self._program.job.rows_known:
            return self._program.total_rows(self._position.epoch)
        delivered = self._connection.run_stats(spans=False).epoch_rows
        return None if delivered is None else delivered * self._program.job.sequence_rows
