"""The shard: the stream that one trainer consumes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from windrow.core.errors import PlanError
from windrow.core.source import RowOrigin
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.delivery.delivery import Delivery, check_drop_last, check_number
from windrow.pipeline.loaders.loader_methods import LoaderMethods
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.shard.epoch import Epoch, EpochBatches
from windrow.pipeline.shard.epoch_reader import UNCOUNTED, EpochReader
from windrow.pipeline.shard.observing_methods import ObservingMethods
from windrow.pipeline.shard.position_methods import PositionMethods
from windrow.pipeline.shard.worker_shards import WorkerShards
from windrow.shuffle.order.batching import Batching


class Shard(PositionMethods, LoaderMethods, ObservingMethods):
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
            changes row counts, `pack`, ``on_error="skip"`` or a format without row counts, they are known once an
            epoch has been read. What is left of a resumed epoch suffices, but not with ``on_error="skip"``, and not
            where documents are packed whole.
        """
        batch_rows = check_number("batch_size", batch_size, 1)
        check_drop_last(drop_last)
        total = self._total_rows()
        legs = self._program.legs
        if legs is not None and not legs.leg(self._position.epoch).is_last:
            raise PlanError(
                "the mixture is endless, or too long to be counted beforehand: it has no number of steps"
            )
        if total is None:
            raise PlanError(UNCOUNTED)
        return self._program.assignment(Batching(batch_rows, drop_last)).steps(total, self._shard)

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
        if latest.assignment.balance is not None:
            raise PlanError(
                "step_lineage() does not know which rows balance= gives to a shard: read without it"
            )
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
        if self._program.job.mixture is not None:
            raise PlanError(
                "a mixture is not divided among DataLoader workers: read it with iter_torch_batches(), which prepares "
                "batches in the background"
            )
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
            if self._first_read is not None:
                batching = Batching(delivery.batch_rows, delivery.drop_last, delivery.balance)
                self._first_read(self._program, opened, batching)
                self._first_read = None
            if (
                self._program.legs is not None
                and self._latest is not None
                and self._latest.epoch == opened.epoch
            ):
                # it was left in the middle: another leg, whose steps may be of another size
                opened = replace(opened, epoch=opened.epoch + 1)
            reader = self._open_reader(delivery, opened, began)
            go_on = None if self._program.job.mixture is None else partial(self._go_on, delivery)
            iterator = EpochBatches(reader, go_on)
            self._position.enter(iterator, opened)
            return iterator

    def _open_reader(self, delivery: Delivery, opened: Cursor, began: float) -> EpochReader:
        runs = self._connection.open_epoch(self._program, delivery, at=opened)
        if self._program.legs is not None:
            self._program.legs.open(opened, runs.facts.assignment, runs.facts.total)
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

    def _has_next(self) -> bool:
        epochs = self._program.job.epochs
        if self._program.legs is not None:
            return not self._closed and self._program.legs.has_rows_at(self._position.upcoming)
        return not self._closed and (epochs is None or self._position.upcoming.epoch < epochs)
