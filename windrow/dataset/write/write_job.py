"""Writing a chain's rows: what is asked for, checked before a byte is written, and its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.source import Source
from windrow.core.tracebacks import ends_traceback
from windrow.dataset.head import find_schema
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.sinks.commit import Mode, WriteJob, abandon, begin, commit, list_replaced
from windrow.io.sinks.file_splitting import Layout
from windrow.io.sinks.open_store import find_store
from windrow.io.sinks.sink import Sink
from windrow.io.sinks.write_files import write_empty
from windrow.io.sinks.written_manifest import WriteResult, WrittenFile
from windrow.io.tables.table_source import TableSource

__all__ = ["WriteRequest", "write"]

_NAME_BYTES = 6


@dataclass(frozen=True)
class WriteRequest:
    """What a ``write_*`` call asks for.

    Attributes
    ----------
    sink
        The format.
    path, filesystem, storage_options
        Where to.
    mode
        What happens to what is there.
    partition_by
        Columns whose values become directories.
    target_file_bytes
        Decoded bytes of a file, about; None: the default of who writes.
    """

    sink: Sink
    path: str | os.PathLike[str]
    partition_by: str | Sequence[str] = ()
    target_file_bytes: int | str | None = None
    mode: Mode = "error"
    filesystem: Any = field(default=None, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def layout(self) -> Layout:
        """How rows are cut into files.

        Raises
        ------
        PlanError
            For a size that is none, or columns that are no names.
        """
        by = [self.partition_by] if isinstance(self.partition_by, str) else list(self.partition_by)
        if not all(isinstance(name, str) for name in by):
            raise PlanError(f"partition_by={self.partition_by!r} must be a list of columns' names")
        size = self.target_file_bytes
        return Layout(tuple(by), None if size is None else parse_bytes(size, "target_file_bytes"))


@ends_traceback
def write(
    plan: LogicalPlan,
    request: WriteRequest,
    layout: Layout,
    write_files: Callable[[WriteJob], Sequence[WrittenFile]],
) -> WriteResult:
    """Write a chain; what fails leaves nothing of it, and what it would have replaced is still there.

    Parameters
    ----------
    write_files
        Writes all files of a job.

    Raises
    ------
    PlanError
        Before anything is written: for columns that the format cannot carry, and where something is
        that must not be replaced.
    SourceError, TransformError
        If reading, a transform or writing fails.
    """
    schema = find_schema(plan)
    request.sink.check(layout.stored(schema))
    store = find_store(request.path, request.filesystem, request.storage_options)
    replaced = list_replaced(store, request.mode, _find_read(plan.source))
    job = WriteJob(os.urandom(_NAME_BYTES).hex(), store, request.sink, schema, layout.partition_by)
    made = begin(store, replaced)
    try:
        # a directory without files is none to readers
        files = write_files(job) or [write_empty(job, layout)]
        return commit(job, files, replaced)
    except BaseException:
        with suppress(Exception):
            abandon(job, made)
        raise


def _find_read(source: Source) -> Collection[str]:
    """The paths of the files and folders that are read."""
    found = set(source.reads) if isinstance(source, (ListedSource, TableSource)) else set()
    if isinstance(source, FileSource):
        manifest = source.manifest
        found.update(source.files.name(manifest.path(at)) for at in range(manifest.fragments))
    return found
