"""From which row of an epoch shards read it, and whether that gives every row once."""

from __future__ import annotations

from windrow.core.errors import StateError
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["EpochStarts"]


class EpochStarts:
    """Where the epochs that are being read were begun: the earliest row of any shard."""

    def __init__(self) -> None:
        self._starts: dict[int, Cursor] = {}

    def open(self, shard: int, cursor: Cursor, rest: ShardAssignment, *, is_first: bool) -> None:
        """A shard begins an epoch at a cursor, or comes back to it.

        Parameters
        ----------
        rest
            How the epoch is dealt to it from there.
        anew
            Whether nobody else reads that epoch.

        Raises
        ------
        StateError
            If rows between the shards' would be lost or read twice: they must lie whole steps of
            this deal apart, and whoever is ahead must have come there by it.
        """
        start = cursor if is_first else self._starts[cursor.epoch]
        earlier, later = sorted((start, cursor), key=lambda at: at.row)
        steps_apart = (later.row - earlier.row) % rest.step_rows == 0
        is_own = steps_apart and later.assigned == (rest.shards, rest.batch_rows)
        if earlier.row != later.row and not is_own:
            raise StateError(
                f"shard {shard} would go on at row {cursor.row:,} of epoch {cursor.epoch}, and another shard "
                f"reads that epoch from row {start.row:,}: load the same state into all shards; "
                "windrow.merge_state_dicts makes one of several"
            )
        self._starts[cursor.epoch] = earlier
