"""Where a shard has come to: the place between its epochs, and the iterator of the one that is open."""

from __future__ import annotations

import threading
import weakref
from collections import deque

from windrow.pipeline.batch_iterator import BatchIterator
from windrow.pipeline.connection import Connection
from windrow.pipeline.cursor import Cursor
from windrow.pipeline.finalizing import in_background
from windrow.pipeline.reading import Reading
from windrow.pipeline.stats import Tally

__all__ = ["Position"]


class Position:
    """A shard's place, and what it has received on the way there.

    Parameters
    ----------
    start
        Where it begins.
    line
        The shard's connection, dropped where an epoch fails.

    Attributes
    ----------
    epochs
        Epochs read to their end.
    moves
        How often the place was changed from outside. An epoch that ``iter_epochs`` handed out before is
        none of this stream any more.
    """

    def __init__(self, start: Cursor, line: Connection) -> None:
        self.epochs = 0
        self.moves = 0
        self._at = start
        self._line = line
        self._tally = Tally()
        self._open: weakref.ReferenceType[BatchIterator] | None = None
        self._settling = threading.RLock()
        self._unsettled: deque[Reading] = deque()

    @property
    def iterator(self) -> BatchIterator | None:
        """The iterator of the epoch that is open."""
        return self._open() if self._open is not None else None

    @property
    def at(self) -> Cursor:
        """The place between epochs; that of the open one's begin while there is one."""
        self.settle()
        return self._at

    @property
    def consumed(self) -> Cursor:
        """The place behind the last batch that was handed out."""
        iterator = self.iterator
        return self.at if iterator is None else iterator.reading.cursor

    @property
    def damaged(self) -> tuple[int, ...]:
        """The blocks that are known by now to be left out as damaged."""
        iterator = self.iterator
        return (self._at if iterator is None else iterator.reading.known).damaged

    @property
    def tally(self) -> Tally:
        """What has been received, that of the open epoch included."""
        iterator = self.iterator
        return self._tally if iterator is None else self._tally.add(iterator.reading)

    def move(self, cursor: Cursor) -> None:
        """Go on from another place; no epoch is open."""
        self._at = cursor
        self.moves += 1

    def enter(self, iterator: BatchIterator) -> None:
        """An epoch is open, as long as its iterator lives."""
        self._open = weakref.ref(iterator)

    def leave(self, epoch: int) -> None:
        """Go on to the next epoch, whether or not this one was read."""
        iterator = self.iterator
        if iterator is not None:
            iterator.close()
        if self.at.epoch == epoch:
            self._at = self._at.next_epoch()

    def settle(self) -> None:
        """End what dropped iterators have left, before anything depends on it."""
        with self._settling:
            while self._unsettled:
                self._unsettled.popleft().end()

    # --- what an open epoch tells

    def dropped(self, reading: Reading) -> None:
        """Note that an iterator is gone; called by a finalizer, so nothing else happens now."""
        self._unsettled.append(reading)
        in_background(self.settle)

    def ended(self, reading: Reading, *, whole: bool, failed: bool) -> None:
        """Note how an epoch has ended."""
        self._tally = self._tally.add(reading)
        self._open = None
        self.epochs += whole
        # what was not delivered for an error is delivered next
        self._at = reading.cursor if failed else reading.next_epoch(whole=whole)
        if failed:
            self._line.drop()
