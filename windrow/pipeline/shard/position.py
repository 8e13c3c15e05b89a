"""How far a shard has been consumed, and the iterator of the epoch that is open."""

from __future__ import annotations

import threading
import weakref
from collections import deque

from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.stats import Tally
from windrow.pipeline.delivery.batch_iterator import BatchIterator
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.epoch_reader import EpochReader
from windrow.pipeline.shard.finalizers import in_background

__all__ = ["Position"]


class Position:
    """How far a shard has been consumed, and what it has received so far.

    An epoch that is left early stays the current one: its cursor names what follows the last batch that
    was handed out, so that a checkpoint taken now loses no row. It counts as consumed once the next
    epoch is asked for (`advance`, `enter`, `leave`).

    Parameters
    ----------
    start
        Where it begins.
    line
        The shard's connection, dropped where an epoch fails.
    left_epoch
        The epoch that was left before its end was found, if any.

    Attributes
    ----------
    epochs
        Epochs read to their end.
    moves
        How often the cursor was changed from outside. Epochs that ``iter_epochs`` handed out before
        are stale then.
    """

    def __init__(self, start: Cursor, connection: Connection, *, left_epoch: int | None = None) -> None:
        self.epochs = 0
        self.moves = 0
        self._at = start
        self._left_epoch = left_epoch
        self._connection = connection
        self._tally = Tally()
        self._open: weakref.ReferenceType[BatchIterator] | None = None
        self._dropped_lock = threading.RLock()
        self._dropped: deque[EpochReader] = deque()

    @property
    def iterator(self) -> BatchIterator | None:
        """The iterator of the epoch that is open."""
        return self._open() if self._open is not None else None

    @property
    def at(self) -> Cursor:
        """What has been consumed; while an epoch is open, where it was opened."""
        self.end_dropped_readers()
        return self._at

    @property
    def is_left(self) -> bool:
        """Whether the epoch at the cursor was left early, and the next one was not asked for yet."""
        return self.at.epoch == self._left_epoch

    @property
    def left_epoch(self) -> int | None:
        """The epoch that was left before its end was found, if the next one was not asked for yet.

        Where no batch was left of it, the cursor is at the next one already.
        """
        self.end_dropped_readers()
        return self._left_epoch

    @property
    def current(self) -> int:
        """The number of the epoch that is open or was left, else of the one that is read next."""
        left = self.left_epoch
        return self._at.epoch if left is None else left

    @property
    def upcoming(self) -> Cursor:
        """Where the next ``iter_*`` call begins."""
        at = self.at
        return at.next_epoch() if self.is_left else at

    @property
    def epoch(self) -> int:
        """The number of the current epoch; ends no iterator."""
        return self._at.epoch

    @property
    def consumed(self) -> Cursor:
        """The place behind the last batch that was handed out."""
        iterator = self.iterator
        return self.at if iterator is None else iterator.epoch_reader.cursor

    @property
    def corrupt(self) -> tuple[int, ...]:
        """The blocks that are known by now to be left out as corrupt."""
        iterator = self.iterator
        return (self._at if iterator is None else iterator.epoch_reader.start_cursor).corrupt

    @property
    def tally(self) -> Tally:
        """What has been received, that of the open epoch included."""
        iterator = self.iterator
        return self._tally if iterator is None else self._tally.add(iterator.epoch_reader)

    def move(self, cursor: Cursor) -> None:
        """Go on from another cursor; no epoch is open."""
        self._at, self._left_epoch = cursor, None
        self.moves += 1

    def enter(self, iterator: BatchIterator, opened: Cursor) -> None:
        """An epoch has been opened at a cursor, and stays open as long as its iterator lives."""
        self._at, self._left_epoch = opened, None
        self._open = weakref.ref(iterator)

    def advance(self) -> None:
        """The next epoch is asked for: one that was left early counts as consumed."""
        self._at, self._left_epoch = self.upcoming, None

    def leave(self, epoch: int) -> None:
        """Go on to the epoch after ``epoch``, whether or not that was read."""
        iterator = self.iterator
        if iterator is not None:
            iterator.close()
        if self.at.epoch == epoch:
            self._at = self._at.next_epoch()
        self._left_epoch = None

    def end_dropped_readers(self) -> None:
        """End what dropped iterators have left, before anything depends on it."""
        with self._dropped_lock:
            while self._dropped:
                self._dropped.popleft().end()

    # --- what an open epoch tells

    def dropped(self, reader: EpochReader) -> None:
        """Note that an iterator is gone; called by a finalizer, so nothing else happens now."""
        self._dropped.append(reader)
        in_background(self.end_dropped_readers)

    def ended(self, reader: EpochReader, at: Cursor, *, whole: bool, error: BaseException | None) -> None:
        """Note how an epoch has ended, and what of it was consumed."""
        self._tally = self._tally.add(reader)
        self._open = None
        self.epochs += whole
        self._at = at
        # after an error the rest of the epoch is delivered next; who interrupts a wait has left the epoch
        self._left_epoch = None if whole or isinstance(error, Exception) else reader.epoch
        if error is not None:
            self._connection.disconnect()
