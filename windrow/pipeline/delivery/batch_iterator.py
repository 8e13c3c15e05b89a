"""The iterator over one epoch's batches."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from windrow.core.tracebacks import USER_ERRORS, cause_of, trim_traceback
from windrow.pipeline.shard.epoch_reader import EpochReader

__all__ = ["BatchIterator"]


class BatchIterator:
    """Batches of one epoch for one shard, once.

    It only holds what reads them, so that nothing else holds it: leaving a loop ends it.
    """

    def __init__(self, reader: EpochReader) -> None:
        self._reader = reader
        # not a method of the iterator, which would keep it alive
        weakref.finalize(self, _drop, reader)

    @property
    def start(self) -> int:
        """Steps of the epoch consumed before this iterator began."""
        return self._reader.start

    @property
    def epoch_reader(self) -> EpochReader:
        """What it has consumed, and of what."""
        return self._reader

    def __len__(self) -> int:
        """Steps of the whole epoch.

        Raises
        ------
        TypeError
            While row counts are unknown.
        """
        return self._reader.length()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._reader.next_batch()
        except USER_ERRORS as error:
            raise trim_traceback(error) from cause_of(error)

    def close(self) -> None:
        """Leave the epoch.

        The shard's state then names what follows the last batch; the next ``iter_*`` call reads the
        next epoch.
        """
        self._reader.end()


def _drop(reader: EpochReader) -> None:
    owner = reader.owner
    if owner is not None:
        owner.dropped(reader)
