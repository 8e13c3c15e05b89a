"""What a shard tells about its run: puts together its statistics and its timeline."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import TYPE_CHECKING

from windrow.core.errors import PlanError
from windrow.core.source import Source, is_remote
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.pipeline.checkpoint.mixed_state import describe_mixture
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.statistics.bottleneck import PipelineFacts
from windrow.pipeline.statistics.phases import Span, TrainerStats
from windrow.pipeline.statistics.stats import RunStats, SourceStats, Stats

if TYPE_CHECKING:
    from windrow.pipeline.plan.program import Program
    from windrow.pipeline.shard.connection import Connection
    from windrow.pipeline.shard.consumer import Consumer
    from windrow.pipeline.shard.epoch import Position
    from windrow.pipeline.shard.run_record import RunRecord
    from windrow.pipeline.shard.worker_shards import WorkerShards
    from windrow.pipeline.timeline.timeline import Timeline

# opening one of their files costs as much as decoding 100 KB
_TABLE_FORMATS = ("Parquet", "Arrow")


def describe_pipeline(job: Job) -> PipelineFacts:
    """What the diagnosis has to know of a job."""
    reader = job.source.reader
    files, file_bytes = _measure_files(job.source)
    return PipelineFacts(
        executor=resolve_executor(job.options.executor).name,
        is_remote=is_remote(reader),
        epochs=job.epochs,
        prefetch_windows=job.options.prefetch_windows,
        cache=job.cache,
        profiled=job.options.profile,
        before=tuple(stage.name for stage in job.before),
        after=tuple(stage.name for stage in job.after),
        codec=_find_codec(job.source),
        files=files,
        file_bytes=file_bytes,
    )


def _find_files(source: Source) -> FileSource | None:
    stored = source.stored if isinstance(source, RowIdSource) else source
    return stored if isinstance(stored, FileSource) else None


def _measure_files(source: Source) -> tuple[int, float]:
    """The number of files that are read, and their mean size; 0 for formats whose rows cost more than a file."""
    stored = _find_files(source)
    if stored is None or stored.format.name not in _TABLE_FORMATS or not stored.manifest.fragments:
        return 0, 0.0
    opened = stored.blocks.files
    files = stored.manifest.fragments
    # files that the filter rules out are not opened; large ones are opened for several blocks
    return files if opened is None else min(files, int(opened.sum())), float(
        stored.manifest.file_bytes.mean()
    )


def _find_codec(source: Source) -> str:
    """The codec that stores most of the bytes; empty where files name none."""
    stored = _find_files(source)
    codecs = {} if stored is None else stored.manifest.codecs
    codec = max(codecs, key=lambda name: codecs[name], default="")
    # the file format has two of this name
    return "lz4" if codec == "lz4_raw" else codec


def _make_stats(
    job: Job,
    run: RunStats,
    trainer: TrainerStats,
    *,
    epochs: int,
    spans: Iterable[Span],
    loader_workers: int = 0,
    sources: tuple[SourceStats, ...] = (),
) -> Stats:
    """Return the statistics of a shard and its run."""
    facts = describe_pipeline(job)
    return Stats(trainer.shard, epochs, trainer, run, facts, tuple(spans), loader_workers, sources)


class ObservingMethods:
    """Base class of Shard."""

    _connection: Connection
    _consumer: Consumer
    _divided: WorkerShards | None
    _position: Position
    _program: Program
    _shard: int

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
        run = self._connection.run_stats(spans=True)
        return _make_stats(
            self._program.job,
            run,
            self._consumer.totals.stats(),
            epochs=self._position.epochs,
            spans=self._consumer.spans,
            loader_workers=0 if divided is None else divided.workers,
            sources=self._source_stats(run),
        )

    def _source_stats(self, run: RunStats) -> tuple[SourceStats, ...]:
        mixture = self._program.job.mixture
        if mixture is None:
            return ()
        cursor = self._position.consumed
        leg = mixture.leg_at(cursor)
        state = describe_mixture(mixture, leg, leg.row)
        total = sum(each.weight for _, each in state.sources)
        begins = leg.point_at(leg.row).counts
        waits = {each.name: each.wait_seconds for each in run.sources}
        return tuple(
            SourceStats(
                name=name,
                rows=each.rows,
                passes=each.rows // source.pass_rows,
                share=each.weight / total,
                achieved=(each.rows - begun) / state.since if state.since else nan,
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
