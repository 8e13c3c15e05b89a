"""The method of a shard that tells its run's timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windrow.pipeline.shard.connection import Connection
    from windrow.pipeline.shard.run_record import RunRecord
    from windrow.pipeline.timeline.timeline import Timeline

__all__ = ["TimelineMethods"]


class TimelineMethods:
    """Base class of Shard."""

    _connection: Connection

    def _join(self, record: RunRecord) -> None:
        """Note what is read here in the record that the shards of a run share."""
        self._connection.record = record

    def timeline(self) -> Timeline:
        """Return the timeline of the run that serves this shard: windows, tasks, and when trainers were idle.

        It has all shards of the run. What other processes did is known up to their last report, which is at most some
        seconds old.

        Raises
        ------
        PlanError
            If nothing has been read yet.

        Examples
        --------
        >>> import windrow
        >>> with windrow.range(100).repeat(1).random_shuffle_each_window(seed=7).iterator() as shard:
        ...     rows = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=10))
        ...     timeline = shard.timeline()
        >>> list(timeline.idle)
        [0]
        """
        return self._connection.record.timeline()
