"""The frame of every ``write_*`` call: checks before the first byte, commit on success, cleanup on failure.

Beside it are the rows that failed, and the digest by which ``mode="resume"`` recognises what it has begun.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import CodeType
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.source import Source
from windrow.core.tracebacks import trims_traceback
from windrow.core.user_functions import function_name
from windrow.core.user_warnings import warn_user
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.listed_source import ListedSource
from windrow.io.catalog.row_ids import RowIdSource
from windrow.io.sinks.arrow_sinks import ParquetSink
from windrow.io.sinks.commit import (
    DIGEST_CHARS,
    FinishedPart,
    Mode,
    WriteJob,
    abandon,
    begin,
    check_begun,
    commit,
    find_finished,
    lie_within,
    list_replaced,
)
from windrow.io.sinks.open_store import find_store, mapped_errors
from windrow.io.sinks.sink import Sink
from windrow.io.sinks.store import Store
from windrow.io.sinks.write_files import Layout, write_empty
from windrow.io.sinks.written_manifest import WriteResult
from windrow.io.tables.snapshot_source import TableSource
from windrow.pipeline.exchange.derived_source import DerivedSource
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.transforms import FailedRows

_NAME_BYTES = 6
ERROR_COLUMN = "windrow_error"


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
    find_schema: Callable[[], pa.Schema],
    write_files: Callable[[Output], FinishedPart],
) -> WriteResult:
    """Write the rows of a plan, by ``write_files``; on failure, delete the new files and keep the old ones.

    With ``mode="resume"``, the new files stay too, and the next call goes on with them. ``find_schema`` finds the
    columns and types after transforms.
    """
    resumes = request.mode == "resume"
    store = find_store(request.path, request.filesystem, request.storage_options)
    # before the schema, since a transform can take long to load a model
    replaced = list_replaced(store, request.mode, _find_sources(plan.source))
    begun = _digest(plan, request, layout) if resumes else ""
    if resumes:
        check_begun(store, begun)
    schema = find_schema()
    request.sink.check(layout.stored(schema))
    name = begun + _shorten(schema.to_string()) if resumes else os.urandom(_NAME_BYTES).hex()
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
        warn_user(_failed_text(request, part.failed_rows))
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


def _digest(plan: LogicalPlan, request: WriteRequest, layout: Layout) -> str:
    """Name a write by what determines its files, as far as that can be told: the first of the `NAME_PARTS`."""
    stages = [digest_stage(stage) for stage in (*find_stages(plan.source), *plan.maps)]
    arguments = (repr(request.sink), repr(layout), str(request.failed_rows))
    parts = (plan.read_source.contents, "\n".join(stages), "\n".join(arguments))
    return "".join(map(_shorten, parts))


def _shorten(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


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


@dataclass(frozen=True)
class FailedRowsFolder:
    """Where failed rows go; ``job`` names the write, so that a retried task replaces its own files."""

    store: Store
    job: str

    def write(self, label: str, failed: FailedRows) -> int:
        """Write the failed rows of a part as Parquet, a file for each set of columns; returns their number."""
        groups: list[list[pa.Table]] = []
        for rows, error in failed:
            if ERROR_COLUMN in rows.column_names:
                # rows that failed before
                rows = rows.drop_columns([ERROR_COLUMN])
            texts = pa.array([str(error)] * rows.num_rows, pa.large_string())
            table = rows.append_column(ERROR_COLUMN, texts)
            alike = next((group for group in groups if group[0].schema.equals(table.schema)), None)
            if alike is None:
                groups.append([table])
            else:
                alike.append(table)
        for number, tables in enumerate(groups):
            path = f"part-{label}-{number}-{self.job}.parquet"
            with mapped_errors(self.store, f"{self.store.url}/{path}"):
                rows = pa.concat_tables(tables)
                self.store.put(path, lambda stream, rows=rows: ParquetSink().write([rows], stream, label))  # type: ignore[misc]
        return sum(rows.num_rows for rows, _ in failed)


def find_stages(source: Source) -> Iterator[MapBatches]:
    """The transforms of all datasets that a source is derived from."""
    for parent in getattr(source, "parents", ()):
        yield from find_stages(parent.source)
        yield from parent.maps


def digest_stage(stage: MapBatches) -> str:
    """A digest of a transform: its options and arguments, and the code of its function, as far as they can be told."""
    options = (stage.name, stage.batch_format, stage.batch_size, stage.preserves_rows, stage.rng)
    arguments = (stage.fn_args, stage.fn_kwargs, stage.fn_constructor_args, stage.fn_constructor_kwargs)
    text = "\n".join([repr(options), *map(_describe_value, arguments), _describe_function(stage.fn)])
    return hashlib.sha256(text.encode()).hexdigest()


def _describe_value(value: Any, within: tuple[int, ...] = ()) -> str:
    """Return what stays the same from one process to the next: a plain value, else only its type.

    ``within`` has the ids of what the value lies in: what refers to itself has no end.
    """
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if id(value) in within:
        return name
    describe = functools.partial(_describe_value, within=(*within, id(value)))
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{describe(key)}: {describe(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe, value))}]"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.generic, os.PathLike)):
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        # what is not shown, such as credentials, can be another each time
        shown = (
            f"{each.name}={describe(getattr(value, each.name, None))}" for each in fields(value) if each.repr
        )
        return f"{name}({', '.join(shown)})"
    return name


def _describe_function(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return f"{_describe_function(fn.func)} {_describe_value((fn.args, fn.keywords))}"
    if isinstance(fn, type):
        methods = sorted((name, value) for name, value in vars(fn).items() if hasattr(value, "__code__"))
        return f"{fn.__qualname__} " + " ".join(
            f"{name}: {_describe_code(each.__code__)}" for name, each in methods
        )
    code = getattr(fn, "__code__", None)
    if code is None:
        return f"{function_name(fn)} {_describe_value(fn)}"
    cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    return " ".join([_describe_code(code), *map(_describe_value, (*cells, fn.__defaults__))])


def _describe_code(code: CodeType) -> str:
    text = repr((code.co_code, code.co_names, [_describe_constant(each) for each in code.co_consts]))
    return hashlib.sha256(text.encode()).hexdigest()


def _describe_constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _describe_code(value)
    # the order of a set differs between processes
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
