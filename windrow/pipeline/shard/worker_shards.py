"""The shards of worker processes that divide one trainer's stream, and which epoch each pass over them reads."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

from windrow.core.errors import PlanError
from windrow.pipeline.checkpoint.resume import resume, skip_steps
from windrow.pipeline.checkpoint.state import describe_stream
from windrow.pipeline.executors.base import Session
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.batching import Batching

# of passes that other loaders, or abandoned ones, have begun
_REMEMBERED = 32
# the number of passes, what to add to a pass's number for its epoch, the number + 1 of the last pass that was resumed,
# and the worker processes of the last pass
_COUNT, _OFFSET, _RESUMED, _WORKERS, _HEADER = range(5)


class Passes:
    """Numbers the passes over a dataset, in memory that all worker processes share.

    The workers of one pass of a DataLoader have its seed in common. Workers that persist begin their k-th pass
    with that seed together.
    """

    def __init__(self) -> None:
        # this context's locks also work in forked processes
        context = multiprocessing.get_context("spawn")
        self._lock = context.Lock()
        # see `_COUNT`; then for each remembered pass its seed, k and number + 1
        self._values = context.Array("q", _HEADER + 3 * _REMEMBERED, lock=False)

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            raise PlanError(
                "a dataset of as_torch_dataset() can be sent to the workers of a DataLoader only: send the shard, "
                "and call as_torch_dataset() there"
            )
        return self.__dict__

    @property
    def latest(self) -> int | None:
        """The number of the pass that began last."""
        count = int(self._values[_COUNT])
        return count - 1 if count else None

    @property
    def resumed(self) -> int:
        """The number of the last pass that continued from a worker's state; -1: none."""
        return int(self._values[_RESUMED]) - 1

    @property
    def workers(self) -> int:
        """The worker processes of the pass that began last; 0: the process of the loop reads itself."""
        return int(self._values[_WORKERS])

    def begin(self, seed: int, repetition: int, workers: int) -> int:
        """The number of the pass that one of ``workers`` begins for the ``repetition``-th time with a seed."""
        with self._lock:
            values = self._values
            for at in range(_HEADER, len(values), 3):
                if values[at + 2] and (values[at], values[at + 1]) == (seed, repetition):
                    return int(values[at + 2]) - 1
            number = int(values[_COUNT])
            values[_COUNT] = number + 1
            values[_WORKERS] = workers
            at = _HEADER + 3 * (number % _REMEMBERED)
            values[at : at + 3] = [seed, repetition, number + 1]
            return number

    def epochs(self, number: int) -> int:
        """How many epochs after the one at which the passes began a pass reads."""
        return number + int(self._values[_OFFSET])

    def resume(self, number: int, epochs: int) -> None:
        """Have pass ``number``, which continues from a worker's state, read the epoch after ``epochs`` others."""
        with self._lock:
            self._values[_OFFSET] = epochs - number
            self._values[_RESUMED] = number + 1


@dataclass
class WorkerShards:
    """Opens the shards of processes that divide a shard; goes to each of them.

    The passes begin at the cursor ``start``. A later pass reads a whole epoch.
    """

    # makes a shard from a program, a session, a number and a cursor
    make_shard: Callable[[Program, Session, int, Cursor], Any]
    program: Program
    session: Session
    shard: int
    start: Cursor

    def __post_init__(self) -> None:
        self.passes = Passes()
        self._opened: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @property
    def workers(self) -> int:
        """The worker processes of the pass that began last; 0: the process of the loop reads itself."""
        return self.passes.workers

    @property
    def opened(self) -> Any:
        """The shard that this process has opened; None: none."""
        return self._opened[1] if self._opened is not None and self._opened[0] == os.getpid() else None

    def cursor(self, number: int) -> Cursor:
        """Where a pass starts."""
        epochs = self.passes.epochs(number)
        return self.start if epochs == 0 else Cursor(self.start.epoch + epochs, corrupt=self.start.corrupt)

    def open(self, cursor: Cursor, worker: int, workers: int) -> Any:
        """The shard of a worker at a cursor; the one of the pass before, if it has got there."""
        before = self.opened
        if before is not None:
            if before.is_at(cursor):
                return before
            before.close()
        program, session, number = self.program, self.session, self.shard
        if workers > 1:
            program = program.divided(workers)
            number += worker * self.program.shards
            session = session.for_workers(program, number)
        shard = self.make_shard(program, session, number, cursor)
        self._opened = os.getpid(), shard
        return shard

    def state_at(self, cursor: Cursor) -> dict[str, Any]:
        """The state at a cursor."""
        shards, batch_rows = cursor.assigned or (None, None)
        return describe_stream(self.program.job).at(cursor, shards=shards, batch_size=batch_rows).to_dict()

    def resume(self, number: int, state: Mapping[str, Any], *, has_ended: bool) -> Cursor:
        """The cursor of a worker's state, from which its pass ``number`` continues.

        ``has_ended``: the worker had no batch left, and its state is at the next epoch.
        """
        _, cursor = resume(self.program.job, state)
        self.passes.resume(number, cursor.epoch - has_ended - self.start.epoch)
        return cursor

    def state_after(
        self, batches: int, batch_rows: int, *, drop_last: bool, balance: Balance | None
    ) -> dict[str, Any]:
        """The state of the stream after some batches of the pass that began last."""
        program, latest = self.program, self.passes.latest
        if program.job.skips_corrupt:
            raise PlanError(
                "state_after() cannot name the blocks that workers have skipped as corrupt: with "
                'on_error="skip", use torchdata\'s StatefulDataLoader and its state_dict()'
            )
        if latest is not None and latest == self.passes.resumed:
            raise PlanError(
                "state_after() does not know where a StatefulDataLoader has resumed this epoch: use the loader's "
                "state_dict()"
            )
        at = self.start if latest is None else self.cursor(latest)
        total = int(program.stored_rows.sum()) if program.job.rows_known else None
        cursor = skip_steps(
            program, at, batches, batch_rows=batch_rows, drop_last=drop_last, total=total, balance=balance
        )
        stream = describe_stream(program.job)
        return stream.at(cursor, shards=program.shards, batch_size=batch_rows).to_dict()

    def steps(self, batch_rows: int, *, drop_last: bool) -> int | None:
        """Number of batches of a whole epoch; None while row counts are unknown."""
        if not self.program.job.rows_known:
            return None
        assignment = self.program.assignment(Batching(batch_rows, drop_last))
        return assignment.steps(int(self.program.stored_rows.sum()), self.shard)

    def close(self) -> None:
        """Close the shard that this process has opened."""
        if self.opened is not None:
            self.opened.close()
        self._opened = None
