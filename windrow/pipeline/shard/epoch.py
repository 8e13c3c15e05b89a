"""`Epoch`, which ``iter_epochs`` yields: one pass of a shard over its rows."""

from __future__ import annotations

from typing import Protocol

from windrow.core.errors import PlanError
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.delivery.iteration_methods import Deliverable, Delivery
from windrow.pipeline.shard.epoch_batches import EpochBatches
from windrow.pipeline.shard.position import Position

__all__ = ["Epoch"]


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
