"""Stages a Spark DataFrame as Parquet files: writes and checks them, or reuses those with the same rows.

A note marks a folder of staged files as complete, a lock (lease) as in use. Spark writes into a folder with a unique
name, and the note is written last, so that files of a killed process are never considered complete. On a local disk,
the process holds a lock on its folders. The next process that stages there deletes folders that are neither locked
nor kept.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from windrow.core.errors import PlanError, SourceError
from windrow.core.tracebacks import trims_traceback
from windrow.io.adapters.temporary_folder import sweep_folders, take_lease
from windrow.io.catalog.file_source import FileSource, open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.spark.dataframes import Conversion, mapped_errors, select_column, settings
from windrow.io.spark.plan_equality import PlanIdentity, identify
from windrow.io.storage.credentials import check_options, find_secrets, safe_cause, source_error, without_user
from windrow.io.storage.filesystems import Files, connect

_PREFIX = "windrow-stage-"
_NOTE = "_windrow_stage.json"
_LEASE = "_windrow_lease"
# Windows are made of row groups, so they are smaller than Spark's default of 128 MiB.
_WRITE_OPTIONS = {"compression": "snappy", "parquet.block.size": str(64 * 2**20)}
# Arrow reads Spark's default timestamp type, INT96, as nanoseconds, which end in 2262. LEGACY rebasing would
# write dates before 1582 in the Julian calendar, which Arrow does not use.
_SESSION_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_VERSION = 1
_METRICS_SECONDS = 60
# Session settings are shared, so only one thread stages at a time. A thread that waited for another to stage
# the same DataFrame finds its files.
_STAGING_LOCK = threading.Lock()


@dataclass(frozen=True)
class StageFolder:
    """One folder of staged files: its URL for Spark and ``read_parquet``, and its path in an fsspec filesystem."""

    url: str
    path: str
    filesystem: Any = field(repr=False)

    def write_note(self, note: Mapping[str, Any]) -> None:
        self.filesystem.pipe_file(f"{self.path}/{_NOTE}", json.dumps(note).encode())

    def read_note(self) -> dict[str, Any] | None:
        """Return the note; None if the folder is incomplete."""
        try:
            self.filesystem.invalidate_cache()
            note = json.loads(self.filesystem.cat_file(f"{self.path}/{_NOTE}"))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def delete(self) -> None:
        """Delete the folder, the note first, so that no process reads a half-deleted folder."""
        with suppress(FileNotFoundError):
            self.filesystem.rm_file(f"{self.path}/{_NOTE}")
        with suppress(FileNotFoundError):
            self.filesystem.rm(self.path, recursive=True)

    def delete_at_exit(self) -> None:
        """Delete the folder when this process, its owner, ends."""
        process = os.getpid()

        def delete() -> None:
            # a forked child does not own the folder; at exit, errors cannot be reported
            if os.getpid() == process:
                with suppress(Exception):
                    self.delete()

        atexit.register(delete)


@dataclass(frozen=True)
class StageRoot:
    """The parent directory of staging folders; see `open_root`.

    ``url``, ``path`` and ``filesystem`` are as in `StageFolder`. If it is ``private``, other users must not be
    able to read the folders. ``secrets`` must not appear in any message.
    """

    url: str
    path: str
    local: bool
    private: bool
    filesystem: Any = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def make(self, digest: str | None) -> StageFolder:
        """Create a folder with a unique name, which starts with the digest if there is one."""
        while True:
            folder = self._folder(f"{_PREFIX}{digest or 'once'}-{os.urandom(8).hex()}")
            try:
                # Spark creates remote folders; a local one can be swept before its lock is taken
                if not self.local or _create_and_lock(Path(folder.path), self.private):
                    return folder
            except OSError as error:
                fix = "give a cache_dir that can be written to"
                raise source_error(self.url, error, fix, self.secrets) from safe_cause(error, self.secrets)

    def find(self, digest: str) -> list[StageFolder]:
        """Return the folders of a digest, complete or not, sorted by name."""
        try:
            self.filesystem.invalidate_cache()
            found = self.filesystem.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        names = sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)
        return [self._folder(name) for name in names if name.startswith(f"{_PREFIX}{digest}-")]

    def sweep(self) -> None:
        """Delete folders of ended processes on a local disk, except kept ones."""

        def keeps(path: Path) -> object:
            return (self._folder(path.name).read_note() or {}).get("keep")

        if self.local:
            sweep_folders(Path(self.path), _PREFIX, _LEASE, keeps)

    def _folder(self, name: str) -> StageFolder:
        return StageFolder(f"{self.url}/{name}", f"{self.path}/{name}", self.filesystem)


def open_root(
    directory: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> StageRoot:
    """Resolve the parent directory; creates nothing.

    None: the system's temporary folder, with staging folders that only this user can read.
    """
    name = tempfile.gettempdir() if directory is None else os.fspath(directory)
    connection = connect(name, None, storage_options)
    (path,) = connection.paths
    local = connection.opener is None
    # Hadoop resolves a path without a scheme on its default filesystem
    url = f"file://{path if path.startswith('/') else '/' + path}" if local else name.rstrip("/")
    secrets = find_secrets(check_options(storage_options))
    return StageRoot(url, path.rstrip("/"), local, directory is None, connection.lister, secrets)


def delete_folder(files: Files) -> None:
    """Delete the folder of files; a PlanError unless it is a complete staging folder."""
    connection = connect(files.root, files.filesystem, None)
    (path,) = connection.paths
    folder = StageFolder(files.url, path, connection.lister)
    if not path.rpartition("/")[2].startswith(_PREFIX) or folder.read_note() is None:
        name = without_user(files.url)
        raise PlanError(f"{name} is not a folder staged by from_spark(), or it has been deleted already")
    folder.delete()


def _create_and_lock(path: Path, private: bool) -> bool:
    """Create a folder and lock its lease file until this process ends; return False if it was swept meanwhile."""
    path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    return take_lease(path / _LEASE, exclusive=True) is not None


_STAGED: list[_Staged] = []


@dataclass(frozen=True)
class StageRequest:
    """What to stage, and where."""

    df: Any
    conversion: Conversion
    root: StageRoot
    # whether the files stay when the process ends
    keep: bool
    # fsspec options to read the directory
    storage_options: Mapping[str, Any] | None


@dataclass(frozen=True)
class _Staged:
    """A folder that this process staged, or found staged by another process."""

    identity: PlanIdentity
    conversion: Conversion
    root_url: str
    keep: bool
    folder: StageFolder


@trims_traceback
def stage(request: StageRequest) -> FileSource:
    """Stage a DataFrame, or find its staged files, and return them as a source."""
    with _STAGING_LOCK:
        request.root.sweep()
        with mapped_errors("from_spark", "check that df.count() succeeds", request.root.secrets):
            # Spark analyses a plan on first access, which can raise
            identity = identify(request.df)
        return _find(request, identity) or _write(request, identity)


def _find(request: StageRequest, identity: PlanIdentity | None) -> FileSource | None:
    """Return complete staged files with the same rows that stay at least as long as requested, or None."""
    if identity is None:
        return None
    for staged in tuple(_STAGED):
        same_place = (staged.conversion, staged.root_url) == (request.conversion, request.root.url)
        if same_place and staged.keep >= request.keep and identity.same_rows(staged.identity):
            source = _open(request, staged.folder)
            if source is not None:
                return source
            _STAGED.remove(staged)  # its files were deleted
    return _find_of_other_processes(request, identity)


def _find_of_other_processes(request: StageRequest, identity: PlanIdentity) -> FileSource | None:
    """Return files that another process staged with ``keep=True``, or None."""
    if not request.keep or identity.digest is None:
        return None
    for folder in request.root.find(identity.digest):
        note = folder.read_note() or {}
        if note.get("keep") and note.get("terms") == _terms(request, identity):
            source = _open(request, folder)
            if source is not None:
                _STAGED.append(_Staged(identity, request.conversion, request.root.url, True, folder))
                return source
    return None


def _open(request: StageRequest, folder: StageFolder) -> FileSource | None:
    """Return a folder as a source; None if its files are incomplete."""
    note = folder.read_note()
    if note is None or note.get("version") != _VERSION:
        return None
    try:
        source = _read(request, folder)
    except SourceError:
        return None
    return _with_widths(source, note["widths"]) if int(source.manifest.rows.sum()) == note["rows"] else None


def _write(request: StageRequest, identity: PlanIdentity | None) -> FileSource:
    folder = request.root.make(identity.digest if identity and request.keep else None)
    try:
        rows, widths = _run_spark(request, folder)
        source = _read(request, folder)
        _check_rows(request, folder, rows, int(source.manifest.rows.sum()))
        unchanged = identity is not None and _inputs_unchanged(request, identity)
        terms = _terms(request, identity) if identity is not None and unchanged else None
        note = {"version": _VERSION, "rows": rows, "widths": widths, "keep": request.keep, "terms": terms}
        with mapped_errors(folder.url, "give a cache_dir that can be written to", request.root.secrets):
            folder.write_note(note)
    except BaseException:
        folder.delete()
        raise
    if not request.keep:
        folder.delete_at_exit()
    if identity is not None and unchanged:
        _STAGED.append(_Staged(identity, request.conversion, request.root.url, request.keep, folder))
    return _with_widths(source, widths)


def _inputs_unchanged(request: StageRequest, identity: PlanIdentity) -> bool:
    """Return whether the input files did not change while Spark read them."""
    now = identify(request.df)
    return now is not None and now.same_rows(identity)


def _terms(request: StageRequest, identity: PlanIdentity) -> str:
    return f"{identity.digest} {request.conversion!r}"


def _run_spark(request: StageRequest, folder: StageFolder) -> tuple[int, dict[str, int]]:
    """Let Spark write the files; return the number of rows, and the width of each fixed-width vector column."""
    from pyspark.sql import Observation, functions

    vectors = request.conversion.vector_columns(request.df.schema)
    metrics = [functions.count(functions.lit(1)).alias("rows")]
    for place, name in enumerate(vectors):
        column = select_column(name)
        length = functions.when(column.isNotNull(), functions.size(column))
        metrics += [functions.min(length).alias(f"low {place}"), functions.max(length).alias(f"high {place}")]
    observation = Observation()
    fix = f"check that df.write.parquet({request.root.url!r}) succeeds, on every machine of the cluster"
    with mapped_errors(f"from_spark: staging to {folder.url}", fix, request.root.secrets):
        frame = request.conversion.apply(request.df).observe(observation, *metrics)
        with settings(request.df.sparkSession, _SESSION_SETTINGS):
            frame.write.options(**_WRITE_OPTIONS).mode("append").parquet(folder.url)
        observed = _wait_for_metrics(observation)
    lengths = {
        name: (observed[f"low {place}"], observed[f"high {place}"]) for place, name in enumerate(vectors)
    }
    widths = {name: low for name, (low, high) in lengths.items() if low is not None and low == high}
    return int(observed["rows"]), widths


def _wait_for_metrics(observation: Any) -> dict[str, Any]:
    """Return Spark's metrics, with a timeout: they arrive after the job's end, and ``get`` has none itself."""
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(_METRICS_SECONDS)
    if not found:
        raise SourceError(
            f"from_spark: Spark did not report within {_METRICS_SECONDS} s how many rows it wrote: try again"
        )
    return found[0]


def _check_rows(request: StageRequest, folder: StageFolder, written: int, found: int) -> None:
    if written != found:
        raise SourceError(
            f"{folder.url}: Spark has written {written:,} rows, and this process finds {found:,}: "
            "give a cache_dir= that every machine of the Spark cluster and every trainer sees under the same path, "
            "such as one on a network filesystem or an object store"
        )


def _read(request: StageRequest, folder: StageFolder) -> FileSource:
    options = None if request.root.local else request.storage_options
    path = folder.path if request.root.local else folder.url
    return open_files(path, ParquetFormat(), storage_options=options, partitioning=None)


def _with_widths(source: FileSource, widths: Mapping[str, int]) -> FileSource:
    """Give vector columns of one length a fixed-size list type, which is delivered as a 2-D array."""

    def widened(schema: pa.Schema) -> pa.Schema:
        return pa.schema([_fixed(field, widths.get(field.name)) for field in schema])

    manifest = replace(source.manifest, schema=widened(source.manifest.schema))
    stored = widened(source.stored)
    return replace(source, manifest=manifest, schema=widened(source.schema), stored=stored)


def _fixed(field: Any, width: int | None) -> Any:
    return field if width is None else field.with_type(pa.list_(field.type.value_field, width))
