"""Checks that shards that start an epoch at different rows still read every row exactly once."""

from __future__ import annotations

from windrow.core.errors import StateError
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["EpochStarts"]


class EpochStarts:
    """The earliest row that any shard started at, for each epoch that is being read."""

    def __init__(self) -> None:
        self._starts: dict[int, Cursor] = {}

    def open(self, shard: int, cursor: Cursor, rest: ShardAssignment, *, is_first: bool) -> None:
        """A shard starts an epoch at a cursor, or resumes it.

        Parameters
        ----------
        rest
            The shard assignment of the epoch from there.
        is_first
            Whether no other shard has opened the epoch.

        Raises
        ------
        StateError
            If rows between the shards would be lost or read twice. They must be whole steps of this
            assignment apart, and the shard that is ahead must have got there by it.
        """
        start = cursor if is_first else self._starts[cursor.epoch]
        earlier, later = sorted((start, cursor), key=lambda at: at.row)
        steps_apart = (later.row - earlier.row) % rest.step_rows == 0
        is_own = steps_apart and later.assigned == (rest.shards, rest.batch_rows)
        if earlier.row != later.row and not is_own:
            raise StateError(
                f"shard {shard} would go on at row {cursor.row:,} of epoch {cursor.epoch}, but another shard "
                f"reads that epoch from row {start.row:,}: load the same state into all shards; "
                "windrow.merge_state_dicts merges several into one"
            )
        self._starts[cursor.epoch] = earlier
