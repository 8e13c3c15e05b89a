"""Describes a pipeline: what the diagnosis of a run has to know of it, and what it reads."""

from __future__ import annotations

from windrow.core.source import Source, is_remote
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.io.storage.credentials import without_user
from windrow.pipeline.plan.job import Job
from windrow.pipeline.statistics.bottleneck import PipelineFacts

# opening one of their files costs as much as decoding 100 KB
_TABLE_FORMATS = ("Parquet", "Arrow")


def describe_pipeline(job: Job, executor: str = "threads") -> PipelineFacts:
    """What the diagnosis has to know of a job, given the name of its executor."""
    reader = job.source.reader
    files, file_bytes = _measure_files(job.source)
    return PipelineFacts(
        executor=executor,
        is_remote=is_remote(reader),
        epochs=job.epochs,
        prefetch_windows=job.options.prefetch_windows,
        cache=job.cache,
        profiled=job.options.profile,
        before=tuple(stage.name for stage in job.before),
        after=tuple(stage.name for stage in job.after),
        in_processes=tuple(stage.name for stage in (*job.before, *job.after) if stage.pool is not None),
        is_launched=job.launch.shared,
        codec=_find_codec(job.source),
        files=files,
        file_bytes=file_bytes,
    )


def describe_source(job: Job) -> str:
    """What a job reads, in a few words: the path of files, without passwords and signatures.

    >>> import windrow
    >>> describe_source(windrow.range(1_000).repeat(1)._job())
    '1 fragment, 1 block; 1 column'
    """
    if job.mixture is not None:
        return f"mixture of {', '.join(job.mixture.names)}"
    stored = _find_files(job.source)
    return (
        job.source.describe() if stored is None else f"{stored.format.name} {without_user(stored.files.url)}"
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
