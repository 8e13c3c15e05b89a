"""`Epoch`, one pass of a shard over its rows; the iterator of its batches; and how far the shard has been consumed."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from windrow.core.errors import PlanError
from windrow.core.finalizers import in_background
from windrow.core.missing_names import NamesMissing
from windrow.core.tracebacks import USER_ERRORS, cause_of, trim_traceback
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.delivery.delivery import Delivery, StepPart
from windrow.pipeline.delivery.iteration_methods import Deliverable
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.epoch_reader import EpochReader


class EpochBatches(NamesMissing):
    """One pass over the batches of one epoch for one shard.

    It only refers to the `EpochReader`, and nothing else refers to it, so that leaving a loop finalizes it.
    """

    _public_name = "BatchIterator"

    def __init__(
        self, reader: EpochReader, go_on: Callable[[EpochBatches], EpochReader | None] | None = None
    ) -> None:
        # the latest of them; of a mixture, parts follow one another
        self._readers = [reader]
        self._go_on = go_on
        # a bound method would keep the iterator alive
        self._finalizer = weakref.finalize(self, _drop, self._readers)

    @property
    def epoch_reader(self) -> EpochReader:
        """The reader of the epoch, or of the part of a mixture that is being read."""
        return self._readers[0]

    @property
    def start(self) -> int:
        """Number of steps of the epoch that were consumed before this iterator, rounded down."""
        return self.epoch_reader.start

    @property
    def part(self) -> StepPart | None:
        """With ``balance=``, the rows and costs of the latest batch, by microbatch; None before the first one."""
        return self.epoch_reader.part

    def __len__(self) -> int:
        """Number of steps of the whole epoch; raises TypeError until its rows are counted, at the latest at its end."""
        return self.epoch_reader.length()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            while True:
                try:
                    return self.epoch_reader.next_batch()
                except StopIteration:
                    reader = None if self._go_on is None else self._go_on(self)
                    if reader is None:
                        raise
                    self._readers[0] = reader
        except USER_ERRORS as error:
            if self.epoch_reader.owner is None:
                # the reader can hold the error, and its traceback this iterator, which then would never be freed
                self._finalizer.detach()
            raise trim_traceback(error) from cause_of(error)

    def close(self) -> None:
        """Abandon the epoch: the shard's state then points just behind the last batch."""
        self.epoch_reader.end()


def _drop(readers: list[EpochReader]) -> None:
    reader = readers[0]
    owner = reader.owner
    if owner is not None:
        owner.dropped(reader)


class Position:
    """How far a shard has been consumed, and what it has received so far.

    An epoch that is abandoned early stays the current one: the cursor points just behind the last delivered
    batch, so that a checkpoint taken now loses no row. The epoch counts as consumed once the next one is
    requested (`advance`, `enter`, `leave`). If an epoch fails, the connection is closed.
    """

    def __init__(
        self, start: Cursor, connection: Connection, *, left_epoch: int | None = None, is_one: bool = False
    ) -> None:
        # whether what is abandoned goes on later where it was left: a mixture
        self._is_one = is_one
        # epochs read to their end
        self.epochs = 0
        # how often `move` changed the cursor, which makes epochs yielded by ``iter_epochs`` before stale
        self.moves = 0
        self._at = start
        self._left_epoch = left_epoch
        self._connection = connection
        self._open: weakref.ReferenceType[EpochBatches] | None = None
        self._dropped_lock = threading.RLock()
        self._dropped: deque[EpochReader] = deque()

    @property
    def iterator(self) -> EpochBatches | None:
        """The iterator of the open epoch, if any."""
        return self._open() if self._open is not None else None

    @property
    def at(self) -> Cursor:
        """The consumed position; while an epoch is open, where it was opened."""
        self.end_dropped_readers()
        return self._at

    @property
    def is_left(self) -> bool:
        """Whether the epoch at the cursor was abandoned early, and the next one is not requested yet."""
        return self.at.epoch == self._left_epoch

    @property
    def left_epoch(self) -> int | None:
        """The epoch that was abandoned before its end was found, if the next one is not requested yet.

        If no batch of it remained, the cursor already points at the next epoch.
        """
        self.end_dropped_readers()
        return self._left_epoch

    @property
    def current(self) -> int:
        """The number of the epoch that is open or was abandoned, else of the one to be read next."""
        left = self.left_epoch
        return self._at.epoch if left is None else left

    @property
    def upcoming(self) -> Cursor:
        """Where the next ``iter_*`` call starts."""
        at = self.at
        return at.next_epoch() if self.is_left else at

    @property
    def epoch(self) -> int:
        """The number of the epoch at the cursor, without ending dropped iterators."""
        return self._at.epoch

    @property
    def consumed(self) -> Cursor:
        """The cursor just behind the last delivered batch."""
        iterator = self.iterator
        return self.at if iterator is None else iterator.epoch_reader.cursor

    @property
    def corrupt(self) -> tuple[int, ...]:
        """Numbers of the blocks known so far to be skipped as corrupt."""
        iterator = self.iterator
        return (self._at if iterator is None else iterator.epoch_reader.start_cursor).corrupt

    def move(self, cursor: Cursor) -> None:
        """Continue from another cursor; no epoch may be open."""
        # one that ended later would set the cursor back
        self.end_dropped_readers()
        self._at, self._left_epoch = cursor, None
        self.moves += 1

    def enter(self, iterator: EpochBatches, opened: Cursor) -> None:
        """Note that an epoch was opened at a cursor; it stays open while its iterator is alive."""
        self._at, self._left_epoch = opened, None
        self._open = weakref.ref(iterator)

    def change(self, cursor: Cursor) -> None:
        """Go on from another cursor at the same row; the iterator that is open opens what follows there."""
        iterator = self.iterator
        if iterator is not None:
            iterator.epoch_reader.end()
        self._at, self._left_epoch = cursor, None

    def advance(self) -> None:
        """Count an abandoned epoch as consumed, since the next one is requested."""
        self._at, self._left_epoch = self.upcoming, None

    def leave(self, epoch: int) -> None:
        """Continue with the epoch after ``epoch``, whether or not ``epoch`` was read."""
        iterator = self.iterator
        if iterator is not None:
            iterator.close()
        if self.at.epoch == epoch:
            self._at = self._at.next_epoch()
        self._left_epoch = None

    def end_dropped_readers(self) -> None:
        """End the readers of garbage-collected iterators, before anything depends on the position."""
        with self._dropped_lock:
            while self._dropped:
                self._dropped.popleft().end()

    # --- notifications of the open epoch

    def dropped(self, reader: EpochReader) -> None:
        """Note that an iterator was garbage-collected; called by its finalizer, so the work is deferred."""
        self._dropped.append(reader)
        in_background(self.end_dropped_readers)

    def ended(self, reader: EpochReader, at: Cursor, *, whole: bool, error: BaseException | None) -> None:
        """Note how an epoch ended, and how far it was consumed."""
        self._open = None
        self.epochs += whole
        self._at = at
        # after an error, the rest of the epoch is delivered next; an interrupt (KeyboardInterrupt) abandons it
        stays = whole or self._is_one or isinstance(error, Exception)
        self._left_epoch = None if stays else reader.epoch
        if error is not None:
            self._connection.disconnect()


class _Stream(Protocol):
    """What an epoch needs of its `Shard`, which imports this module."""

    _position: Position

    def _begin(self, delivery: Delivery) -> EpochBatches: ...

    def _total_rows(self) -> int | None: ...


class Epoch(Deliverable):
    """One pass over all rows, made by ``iter_epochs``; it can be read once.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(5)}), "numbers.parquet")
    >>> pipe = windrow.read_parquet("numbers.parquet").repeat(2).random_shuffle_each_window(seed=7)
    >>> with pipe.iterator() as shard:
    ...     for epoch in shard.iter_epochs():
    ...         batches = epoch.iter_batches(batch_size=2)
    ...         print(epoch.number, len(batches), [len(batch["x"]) for batch in batches])
    0 3 [2, 2, 1]
    1 3 [2, 2, 1]
    """

    def __init__(self, shard: _Stream, number: int) -> None:
        self._shard = shard
        self._number = number
        self._facts: EpochFacts | None = None

    def __repr__(self) -> str:
        return f"Epoch({self._number} of {self._shard!r})"

    @property
    def number(self) -> int:
        """The epoch's absolute number, from 0; resuming from a state does not reset it."""
        return self._number

    @property
    def padded_rows(self) -> int:
        """Number of rows of this epoch that ``equal="pad"`` repeats, over all shards.

        Raises
        ------
        PlanError
            If no ``iter_*`` method was called yet; with any of these (a filter, a transform that changes row
            counts, ``on_error="skip"``, a format without row counts), if the first epoch has not been read
            yet.
        """
        total = None if self._facts is None else self._facts.total
        if self._facts is not None and total is None:
            total = self._shard._total_rows()
        if self._facts is None or total is None:
            raise PlanError(
                f"the number of repeated rows of epoch {self._number} is not known yet: call an iter_* method "
                "first, which sets the batch size; with a filter, a row-changing transform, "
                'on_error="skip" or a format without row counts (such as CSV or JSON), read a whole epoch first'
            )
        assignment = self._facts.assignment
        if assignment.ends_by_tokens:
            raise PlanError("with token_budget=, it is not known beforehand which rows are repeated")
        return assignment.padded_rows(total) // assignment.sequence_rows

    def _deliver(self, delivery: Delivery) -> EpochBatches:
        if self._facts is not None or self._shard._position.upcoming.epoch != self._number:
            raise PlanError(
                f"epoch {self._number} has been read or abandoned: an epoch can be read once; "
                "continue with the next one that iter_epochs() yields"
            )
        iterator = self._shard._begin(delivery)
        self._facts = iterator.epoch_reader.facts
        return iterator
