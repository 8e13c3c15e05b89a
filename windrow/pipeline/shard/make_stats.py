"""Puts together the statistics of a shard."""

from __future__ import annotations

from collections.abc import Iterable

from windrow.core.source import RemoteReader, Source
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.pipeline.coordinator.bottleneck import PipelineFacts
from windrow.pipeline.coordinator.phases import TrainerStats
from windrow.pipeline.coordinator.stats import RunStats, Span, Stats
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.job import Job

__all__ = ["describe_pipeline", "make_stats"]


def describe_pipeline(job: Job) -> PipelineFacts:
    """What the diagnosis has to know of a job."""
    reader = job.source.reader
    return PipelineFacts(
        executor=resolve_executor(job.options.executor).name,
        is_remote=isinstance(reader, RemoteReader) and reader.is_remote,
        epochs=job.epochs,
        prefetch_windows=job.options.prefetch_windows,
        cache=job.cache,
        profiled=job.options.profile,
        before=tuple(stage.name for stage in job.before),
        after=tuple(stage.name for stage in job.after),
        codec=_find_codec(job.source),
    )


def _find_codec(source: Source) -> str:
    """The codec that stores most of the bytes; empty where files name none."""
    stored = source.stored if isinstance(source, RowIdSource) else source
    codecs = stored.manifest.codecs if isinstance(stored, FileSource) else {}
    codec = max(codecs, key=lambda name: codecs[name], default="")
    # the file format has two of this name
    return "lz4" if codec == "lz4_raw" else codec


def make_stats(
    job: Job,
    run: RunStats,
    trainer: TrainerStats,
    *,
    epochs: int,
    spans: Iterable[Span],
    loader_workers: int = 0,
) -> Stats:
    """Return the statistics of a shard and its run."""
    return Stats(trainer.shard, epochs, trainer, run, describe_pipeline(job), tuple(spans), loader_workers)
