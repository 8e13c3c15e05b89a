"""The iterator over one epoch's batches."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from windrow.core.tracebacks import SHOWN, cause_of, trim_traceback
from windrow.pipeline.shard.epoch_reader import Reading

__all__ = ["BatchIterator"]


class BatchIterator:
    """Batches of one epoch for one shard, once.

    It only holds what reads them, so that nothing else holds it: leaving a loop ends it.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        # not a method of the iterator, which would keep it alive
        weakref.finalize(self, _drop, reading)

    @property
    def start(self) -> int:
        """Steps of the epoch consumed before this iterator began."""
        return self._reading.start

    @property
    def reading(self) -> Reading:
        """What it has consumed, and of what."""
        return self._reading

    def __len__(self) -> int:
        """Steps of the whole epoch.

        Raises
        ------
        TypeError
            While row counts are unknown.
        """
        return self._reading.length()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._reading.next_batch()
        except SHOWN as error:
            raise trim_traceback(error) from cause_of(error)

    def close(self) -> None:
        """Leave the epoch.

        The shard's state then names what follows the last batch; the next ``iter_*`` call reads the
        next epoch.
        """
        self._reading.end()


def _drop(reading: Reading) -> None:
    owner = reading.owner
    if owner is not None:
        owner.dropped(reading)
