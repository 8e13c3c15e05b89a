"""The frame of every ``write_*`` call: checks before the first byte, commit on success, cleanup on failure.

Beside it are the rows that failed, and the digest by which ``mode="resume"`` recognises what it has begun.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
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
# values that their text tells entirely
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    np.generic,
    os.PathLike,
    Decimal,
    date,
    time,
    timedelta,
)
# characters of a description, which is hashed if it has more
_LONGEST = 1_000
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
    return _hash(text)[:DIGEST_CHARS]


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

    def write(self, label: str, failed: FailedRows) -> tuple[int, tuple[str, ...]]:
        """Write the failed rows of a part as Parquet, a file for each set of columns; returns their number and files.

        Columns of types that Parquet does not store are left out.
        """
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
        paths = tuple(f"part-{label}-{number}-{self.job}.parquet" for number in range(len(groups)))
        for path, tables in zip(paths, groups, strict=True):
            with mapped_errors(self.store, f"{self.store.url}/{path}"):
                rows = _storable(pa.concat_tables(tables))
                self.store.put(path, lambda stream, rows=rows: ParquetSink().write([rows], stream, label))  # type: ignore[misc]
        return sum(rows.num_rows for rows, _ in failed), paths

    def remove_others(self, kept: Mapping[str, Collection[str]]) -> None:
        """Of parts, by label, remove the files of failed rows that earlier attempts have written, and not the last."""
        pattern = re.compile(rf"part-(.*)-\d+-{re.escape(self.job)}\.parquet")
        with mapped_errors(self.store, self.store.url):
            found = [match for match in map(pattern.fullmatch, self.store.list_files()) if match is not None]
            self.store.remove(
                [match[0] for match in found if match[0] not in kept.get(match[1], (match[0],))]
            )


def _storable(rows: pa.Table) -> pa.Table:
    """The columns that Parquet stores, those of the error among them."""
    left_out = []
    for field_ in rows.schema:
        try:
            ParquetSink().check(pa.schema([field_]))
        except PlanError:
            left_out.append(field_.name)
    return rows.drop_columns(left_out)


def find_stages(source: Source) -> Iterator[MapBatches]:
    """The transforms of all datasets that a source is derived from."""
    for parent in getattr(source, "parents", ()):
        yield from find_stages(parent.source)
        yield from parent.maps


def digest_stage(stage: MapBatches) -> str:
    """A digest of a transform: its options and arguments, and the code of its function, as far as they can be told."""
    options = (stage.name, stage.batch_format, stage.batch_size, stage.preserves_rows, stage.rng)
    arguments = (stage.fn_args, stage.fn_kwargs, stage.fn_constructor_args, stage.fn_constructor_kwargs)
    return _hash("\n".join(map(_Description(), (*options, *arguments, stage.fn))))


def _hash(text: str | memoryview) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


class _Description:
    """Describes values by what stays the same from one process to the next: a plain value, code, else only the type."""

    def __init__(self) -> None:
        # by id, with the value itself, so that no other gets its id; what is being described has its type
        self._known: dict[int, tuple[Any, str]] = {}

    def __call__(self, value: Any) -> str:
        known = self._known.get(id(value))
        if known is None:
            self._known[id(value)] = value, _type_name(value)
            text = self._describe(value)
            # values can share others, and then be longer with each level
            self._known[id(value)] = known = value, text if len(text) <= _LONGEST else _hash(text)
        return known[1]

    def _describe(self, value: Any) -> str:
        if isinstance(value, Enum):
            return f"{_type_name(value)}.{value.name}"
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self(key)}: {self(each)}' for key, each in value.items())}}}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self, value))}]"
        if isinstance(value, (set, frozenset)):
            # its order differs between processes
            return f"{{{', '.join(sorted(map(self, value)))}}}"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return f"{value.dtype} {value.shape} {_hash(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)}"
        if isinstance(value, type):
            methods = sorted((name, each) for name, each in vars(value).items() if hasattr(each, "__code__"))
            return f"{value.__qualname__} " + " ".join(
                f"{name}: {_describe_code(each.__code__)}" for name, each in methods
            )
        return self._describe_object(value)

    def _describe_object(self, value: Any) -> str:
        if isinstance(value, functools.partial):
            return f"{self(value.func)} {self(value.args)} {self(value.keywords)}"
        if hasattr(value, "__code__"):
            cells = [_content(cell) for cell in getattr(value, "__closure__", None) or ()]
            defaults = getattr(value, "__defaults__", None)
            return " ".join([_describe_code(value.__code__), *map(self, (*cells, defaults))])
        name = f"{function_name(value)} {_type_name(value)}" if callable(value) else _type_name(value)
        # those that can change do so between an attempt and the next, such as a model that is loaded with the first row
        if is_dataclass(value) and vars(type(value))["__dataclass_params__"].frozen:
            # what is not shown, such as credentials, can be another each time
            shown = [(each.name, getattr(value, each.name, None)) for each in fields(value) if each.repr]
            return f"{name}({', '.join(f'{field}={self(each)}' for field, each in shown)})"
        return name


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _content(cell: Any) -> Any:
    """What a closure holds; None before it is assigned."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _describe_code(code: CodeType) -> str:
    constants = [_describe_constant(each) for each in code.co_consts]
    return _hash(repr((code.co_code, code.co_names, constants)))


def _describe_constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _describe_code(value)
    # the order of a set differs between processes
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
