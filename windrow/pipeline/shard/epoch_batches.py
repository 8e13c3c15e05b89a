"""The iterator over one epoch's batches that ``iter_*`` methods return."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from windrow.core.tracebacks import USER_ERRORS, cause_of, trim_traceback
from windrow.pipeline.shard.epoch_reader import EpochReader

__all__ = ["EpochBatches"]


class EpochBatches:
    """One pass over the batches of one epoch for one shard.

    It only refers to the `EpochReader`, and nothing else refers to it, so that leaving a loop finalizes it.
    """

    def __init__(self, reader: EpochReader) -> None:
        self.epoch_reader = reader
        # a bound method would keep the iterator alive
        weakref.finalize(self, _drop, reader)

    @property
    def start(self) -> int:
        """Number of steps of the epoch that were consumed before this iterator."""
        return self.epoch_reader.start

    def __len__(self) -> int:
        """Number of steps of the whole epoch; raises TypeError if row counts are not known yet."""
        return self.epoch_reader.length()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self.epoch_reader.next_batch()
        except USER_ERRORS as error:
            raise trim_traceback(error) from cause_of(error)

    def close(self) -> None:
        """Abandon the epoch: the shard's state then points just behind the last batch."""
        self.epoch_reader.end()


def _drop(reader: EpochReader) -> None:
    owner = reader.owner
    if owner is not None:
        owner.dropped(reader)
