"""Opening an epoch: what a shard requests and gets, and whether it agrees with the other shards' openings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from windrow.core.errors import PlanError, StateError
from windrow.pipeline.plan.cursor import Cursor
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["EpochFacts", "EpochStarts", "OpenRequest"]


@dataclass(frozen=True)
class OpenRequest:
    """Everything that a coordinator, even a restarted one, needs to serve a shard's epoch.

    A shard is served to the reader of its latest ``token`` only. A restarted coordinator can receive
    the requests of a reader, and of its successor, in any order. It uses the latest: by ``number``, how
    many epochs the reader opened before, and by ``since``, when the reader was created (seconds of its
    machine's clock).

    A reader that continues from its last epoch by itself (``goes_on``) does not take the shard back from
    one that has replaced it. ``seed`` differs from the program's if a state brought another.
    """

    shard: int
    node: str
    token: str
    number: int
    cursor: Cursor
    batch_rows: int
    drop_last: bool
    goes_on: bool
    seed: int | None
    since: float = 0.0


@dataclass(frozen=True)
class EpochFacts:
    """The reply to a shard that opens an epoch."""

    epoch: int
    # the window to start at, and the number of windows in the epoch
    first_window: int
    windows: int
    assignment: ShardAssignment
    # rows of a full run
    run_rows: int
    # rows of the epoch, or None while unknown
    total: int | None
    # to show before the first batch, one line each
    user_warnings: tuple[str, ...] = ()
    # number of extra prefetched windows
    extra_windows: int = 0

    @property
    def next_epoch(self) -> EpochFacts:
        """The expected facts of the next epoch, if its assignment is alike and no row count changes."""
        assignment = replace(self.assignment, start_row=0)
        return replace(self, epoch=self.epoch + 1, first_window=0, assignment=assignment, user_warnings=())


class EpochStarts:
    """The earliest row that any shard started at, for each epoch that is being read."""

    def __init__(self) -> None:
        self._starts: dict[int, Cursor] = {}

    def open(self, shard: int, cursor: Cursor, rest: ShardAssignment, opened: ShardAssignment | None) -> None:
        """A shard starts an epoch at a cursor, or resumes it; ``rest`` is the epoch's assignment from there.

        Raises PlanError if the epoch has been ``opened`` with another batch size or ``drop_last``, and
        StateError if rows between the shards would be lost or read twice. They must be whole steps of
        this assignment apart, and the shard that is ahead must have got there by it.
        """
        start = cursor if opened is None else self._starts[cursor.epoch]
        earlier, later = sorted((start, cursor), key=lambda at: at.row)
        steps_apart = (later.row - earlier.row) % rest.step_rows == 0
        is_own = steps_apart and later.assigned == (rest.shards, rest.batch_size)
        if earlier.row != later.row and not is_own:
            own, other = (at.row // rest.sequence_rows for at in (cursor, start))
            raise StateError(
                f"shard {shard} would go on at row {own:,} of epoch {cursor.epoch}, but another shard "
                f"reads that epoch from row {other:,}: load the same state into all shards; "
                "windrow.merge_state_dicts merges several into one"
            )
        if opened is not None and opened != rest.whole:
            raise PlanError(
                f"epoch {cursor.epoch} is being read with batch_size={opened.batch_size}, "
                f"drop_last={opened.drop_last}; shard {shard} asks for batch_size={rest.batch_size}, "
                f"drop_last={rest.drop_last}. All shards must read an epoch with the same values: change them in "
                "the next epoch"
            )
        self._starts[cursor.epoch] = earlier
