"""Puts together the statistics of a shard."""

from __future__ import annotations

from collections.abc import Iterable

from windrow.core.source import RemoteReader, Source
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.statistics.bottleneck import PipelineFacts
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats, Span, Stats

__all__ = ["describe_pipeline", "make_stats"]

# opening one of their files costs as much as decoding 100 KB
_TABLE_FORMATS = ("Parquet", "Arrow")


def describe_pipeline(job: Job) -> PipelineFacts:
    """What the diagnosis has to know of a job."""
    reader = job.source.reader
    files, file_bytes = _measure_files(job.source)
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
