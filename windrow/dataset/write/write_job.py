"""The frame of every ``write_*`` call: checks before the first byte, commit on success, cleanup on failure."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.source import Source
from windrow.core.tracebacks import trims_traceback
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.failed_rows import FailedRowsFolder
from windrow.dataset.write.stage_digest import digest_stage, find_stages
from windrow.dataset.write.written_schema import find_written_schema
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.io.sinks.commit import (
    FinishedPart,
    Mode,
    WriteJob,
    abandon,
    begin,
    commit,
    find_finished,
    lie_within,
    list_replaced,
)
from windrow.io.sinks.open_store import find_store
from windrow.io.sinks.sink import Sink
from windrow.io.sinks.write_files import Layout, write_empty
from windrow.io.sinks.written_manifest import WriteResult
from windrow.io.tables.snapshot_source import TableSource
from windrow.pipeline.exchange.derived_source import DerivedSource

__all__ = ["Output", "WriteRequest", "write"]

_NAME_BYTES = 6


@dataclass(frozen=True)
class WriteRequest:
    """The arguments of a ``write_*`` call; the sink is the format with its options."""

    sink: Sink
    path: str | os.PathLike[str]
    partition_by: str | Sequence[str] = ()
    target_file_bytes: int | str | None = None
    mode: Mode = "error"
    filesystem: Any = field(default=None, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    failed_rows: str | os.PathLike[str] | None = None

    def layout(self) -> Layout:
        """Return how rows are divided into files; raise a PlanError if an argument is invalid."""
        by = [self.partition_by] if isinstance(self.partition_by, str) else list(self.partition_by)
        if not all(isinstance(name, str) for name in by):
            raise PlanError(f"partition_by={self.partition_by!r} must be a list of column names")
        size = self.target_file_bytes
        return Layout(tuple(by), None if size is None else parse_bytes(size, "target_file_bytes"))


@dataclass(frozen=True)
class Output:
    """Where the tasks of a write put their rows, and what an earlier attempt has finished."""

    job: WriteJob
    failed: FailedRowsFolder | None = None
    finished: Mapping[str, FinishedPart] = field(default_factory=dict)


@trims_traceback
def write(
    plan: LogicalPlan,
    request: WriteRequest,
    layout: Layout,
    write_files: Callable[[Output], FinishedPart],
) -> WriteResult:
    """Write the rows of a plan, by ``write_files``; on failure, delete the new files and keep the old ones.

    With ``mode="resume"``, the new files stay too, and the next call goes on with them.
    """
    resumes = request.mode == "resume"
    schema = find_written_schema(plan, skips_failed=request.failed_rows is not None)
    request.sink.check(layout.stored(schema))
    store = find_store(request.path, request.filesystem, request.storage_options)
    replaced = list_replaced(store, request.mode, _find_sources(plan.source))
    name = _digest(plan, request, layout, schema) if resumes else os.urandom(_NAME_BYTES).hex()
    job = WriteJob(name, store, request.sink, schema, layout.partition_by, resumes)
    failed, failed_before = _find_failed_folder(plan, request, job)
    finished = find_finished(job) if resumes else {}
    if isinstance(finished, WriteResult):
        return finished
    created = begin(store, replaced)
    try:
        # without rows, one empty file keeps the schema: readers reject an empty directory
        part = write_files(Output(job, failed, finished))
        files = part.files or (write_empty(job, layout),)
        result = commit(job, files, replaced, part.failed_rows)
    except BaseException:
        if not resumes:
            with suppress(Exception):
                abandon(job, created)
            if failed is not None:
                with suppress(Exception):
                    abandon(replace(job, store=failed.store), ())
        raise
    if failed is not None:
        failed.store.remove(failed_before)
    if part.failed_rows:
        warnings.warn(_failed_text(request, part.failed_rows), RuntimeWarning, stacklevel=5)
    return result


def _failed_text(request: WriteRequest, rows: int) -> str:
    were = "1 row, which was" if rows == 1 else f"{rows:,} rows, which were"
    return f"transforms failed for {were} written to {request.failed_rows} with the error{'s' if rows > 1 else ''}"


def _find_failed_folder(
    plan: LogicalPlan, request: WriteRequest, job: WriteJob
) -> tuple[FailedRowsFolder | None, tuple[str, ...]]:
    """The folder for failed rows, and the files there that a successful write replaces."""
    if request.failed_rows is None:
        return None, ()
    store = find_store(request.failed_rows, request.filesystem, request.storage_options)
    if lie_within(store, job.store) or lie_within(job.store, store):
        raise PlanError(
            f"failed_rows={str(request.failed_rows)!r} and the target lie in one another: give another folder"
        )
    return FailedRowsFolder(store, job.name), list_replaced(store, request.mode, _find_sources(plan.source))


def _digest(plan: LogicalPlan, request: WriteRequest, layout: Layout, schema: pa.Schema) -> str:
    """Name a write by what determines its files, as far as that can be told."""
    parts = [plan.read_source.contents, repr(request.sink), repr(layout), schema.to_string()]
    parts += [digest_stage(stage) for stage in (*find_stages(plan.source), *plan.maps)]
    parts.append(str(request.failed_rows))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[: 2 * _NAME_BYTES]


def _find_sources(source: Source) -> Collection[str]:
    """Return the paths of the files and folders that the source reads."""
    if isinstance(source, RowIdSource):
        return _find_sources(source.stored)
    if isinstance(source, DerivedSource):
        return {path for parent in source.parents for path in _find_sources(parent.source)}
    found = set(source.reads) if isinstance(source, (ListedSource, TableSource)) else set()
    if isinstance(source, FileSource):
        manifest = source.manifest
        found.update(source.files.name(manifest.path(at)) for at in range(manifest.fragments))
    return found
