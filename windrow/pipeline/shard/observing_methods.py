"""What a shard tells about its run: puts together its statistics and its timeline."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from windrow.core.errors import PlanError
from windrow.pipeline.checkpoint.mixed_state import describe_mixture
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.executors.describe_pipeline import describe_pipeline
from windrow.pipeline.plan.plan_leg import leg_at
from windrow.pipeline.shard.base_shard import BaseShard
from windrow.pipeline.shard.run_record import RunRecord
from windrow.pipeline.statistics.stats import RunStats, SourceStats, Stats

if TYPE_CHECKING:
    from windrow.pipeline.timeline.timeline import Timeline


class ObservingMethods(BaseShard):
    """Base class of Shard: what it has received, and what its run does."""

    def _join(self, record: RunRecord) -> None:
        """Note what is read here in the record that the shards of a run share."""
        self._connection.record = record

    def stats(self) -> Stats:
        """Return what the shard has received so far, and statistics of the job that serves it.

        What DataLoader workers have read is in `TorchDataset.stats` of each worker.
        """
        divided = self._divided
        if divided is not None and not divided.workers and divided.opened is not None:
            # a DataLoader without workers reads it here
            return divided.opened.stats()
        self._position.end_dropped_readers()
        run, job = self._connection.run_stats(spans=True), self._program.job
        return Stats(
            shard=self._shard,
            epochs=self._position.epochs,
            trainer=self._consumer.totals.stats(),
            run=run,
            pipeline=describe_pipeline(job, resolve_executor(job.options.executor).name),
            spans=tuple(self._consumer.spans),
            loader_workers=0 if divided is None else divided.workers,
            sources=self._source_stats(run),
        )

    def _source_stats(self, run: RunStats) -> tuple[SourceStats, ...]:
        mixture = self._program.job.mixture
        if mixture is None:
            return ()
        cursor = self._position.consumed
        leg = leg_at(mixture, cursor)
        row = mixture.known_row(cursor)
        state = describe_mixture(mixture, leg, row)
        total = sum(each.weight for _, each in state.sources)
        begins = leg.point_at(row).counts
        of_tokens = sum(each.tokens or 0 for _, each in state.sources)
        waits = {each.name: each.wait_seconds for each in run.sources}
        packed = "sequences" if mixture.sources[0].seq_len else "rows"
        return tuple(
            SourceStats(
                name=name,
                rows=each.rows,
                counted="documents" if mixture.joined is not None else packed,
                passes=each.rows // source.pass_rows,
                share=each.weight / total,
                achieved=(
                    (each.tokens or 0) / of_tokens
                    if of_tokens
                    else (each.rows - begun) / state.since
                    if state.since
                    else nan
                ),
                wait_seconds=waits.get(name, 0.0),
            )
            for (name, each), source, begun in zip(state.sources, mixture.sources, begins, strict=True)
        )

    def timeline(self) -> Timeline:
        """Return the timeline of the run that serves this shard: windows, tasks, and when trainers were idle.

        It has all shards of the run. What other processes did is known up to their last report, which is at most some
        seconds old.

        Raises
        ------
        PlanError
            If nothing has been read yet, or the workers of a DataLoader read it.

        Examples
        --------
        >>> import windrow
        >>> with windrow.range(100).repeat(1).random_shuffle_each_window(seed=7).iterator() as shard:
        ...     rows = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=10))
        ...     timeline = shard.timeline()
        >>> list(timeline.idle)
        [0]
        """
        divided = self._divided
        workers = 0 if divided is None else divided.workers
        opened: ObservingMethods | None = None if divided is None or workers else divided.opened
        if opened is not None:
            return opened.timeline()
        try:
            return self._connection.record.timeline()
        except PlanError as error:
            if not workers:
                raise
            raise PlanError(
                f"this process has no timeline of shard {self._shard}: the DataLoader's workers read it. "
                "Call timeline() in one of them, as torch.utils.data.get_worker_info().dataset.timeline()"
            ) from error
