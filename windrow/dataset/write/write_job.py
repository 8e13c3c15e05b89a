"""The frame of every ``write_*`` call: checks before the first byte, commit on success, cleanup on failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.source import Source
from windrow.core.tracebacks import trims_traceback
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.io.sinks.commit import Mode, WriteJob, abandon, begin, commit, list_replaced
from windrow.io.sinks.file_splitting import Layout
from windrow.io.sinks.open_store import find_store
from windrow.io.sinks.sink import Sink
from windrow.io.sinks.write_files import write_empty
from windrow.io.sinks.written_manifest import WriteResult, WrittenFile
from windrow.io.tables.snapshot_source import TableSource
from windrow.pipeline.exchange.derived_source import DerivedSource
from windrow.pipeline.tasks.head import find_schema

__all__ = ["WriteRequest", "write"]

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

    def layout(self) -> Layout:
        """Return how rows are divided into files; raise a PlanError if an argument is invalid."""
        by = [self.partition_by] if isinstance(self.partition_by, str) else list(self.partition_by)
        if not all(isinstance(name, str) for name in by):
            raise PlanError(f"partition_by={self.partition_by!r} must be a list of column names")
        size = self.target_file_bytes
        return Layout(tuple(by), None if size is None else parse_bytes(size, "target_file_bytes"))


@trims_traceback
def write(
    plan: LogicalPlan,
    request: WriteRequest,
    layout: Layout,
    write_files: Callable[[WriteJob], Sequence[WrittenFile]],
) -> WriteResult:
    """Write the rows of a plan, by ``write_files``; on failure, delete the new files and keep the old ones."""
    schema = find_schema(plan.job())
    request.sink.check(layout.stored(schema))
    store = find_store(request.path, request.filesystem, request.storage_options)
    replaced = list_replaced(store, request.mode, _find_sources(plan.source))
    job = WriteJob(os.urandom(_NAME_BYTES).hex(), store, request.sink, schema, layout.partition_by)
    created = begin(store, replaced)
    try:
        # without rows, one empty file keeps the schema: readers reject an empty directory
        files = write_files(job) or [write_empty(job, layout)]
        return commit(job, files, replaced)
    except BaseException:
        with suppress(Exception):
            abandon(job, created)
        raise


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
