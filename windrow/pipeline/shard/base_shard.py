"""`BaseShard`: what a shard consists of, and what all kinds of its methods ask of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from windrow.core.errors import PlanError
from windrow.pipeline.checkpoint.lineage import Lineage
from windrow.pipeline.checkpoint.state import State
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors.base import Session
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.connection import Connection
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.epoch import Position
from windrow.pipeline.shard.worker_shards import WorkerShards
from windrow.shuffle.order.batching import Batching

# gets where a shard begins to read, and its batches; raises a PlanError if other ranks have begun otherwise
FirstReadCheck = Callable[[Program, Cursor, Batching], None]


class BaseShard:
    """Base class of Shard."""

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
        # called once, where the first iterator begins
        self._first_read: FirstReadCheck | None = None
        self._stream: State | None = None
        self._latest: EpochFacts | None = None
        self._lineage: Lineage | None = None

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

    @property
    def _batch_size(self) -> int | None:
        if self._latest is not None:
            assignment = self._latest.assignment
            return None if assignment.ends_by_tokens else assignment.batch_size
        assigned = self._position.at.assigned
        return None if assigned is None else assigned[1]

    def _total_rows(self) -> int | None:
        """Rows of an epoch over all shards, or None before they have been counted."""
        if self._program.windows_known:
            return self._program.total_rows(self._position.epoch)
        delivered = self._connection.run_stats(spans=False).epoch_rows
        return None if delivered is None else delivered * self._program.job.sequence_rows
