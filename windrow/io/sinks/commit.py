"""Begin, commit, continue or abandon a write: check the target directory, and write the manifest last.

A manifest exists only while all files it names are complete and no replacement is in progress:
``"overwrite"`` removes the old manifests first, but the files that they name only after all new files
are written, so that a failed write loses no data. ``"append"`` adds a manifest of its own.

An interrupted write goes on by markers of finished parts: what is there is neither read nor written again. A marker
is a small JSON file that is written after all files of its part. Commit removes the markers, like all other files of
the job that the manifest does not name.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from windrow.core.errors import PlanError, SourceError
from windrow.core.system.files import forward_slashes
from windrow.io.sinks.open_store import ArrowStore, mapped_errors
from windrow.io.sinks.sink import Sink
from windrow.io.sinks.store import LocalStore, Store, is_temporary
from windrow.io.sinks.written_manifest import (
    WriteResult,
    WrittenFile,
    manifest_bytes,
    manifest_name,
    parse_manifest,
)
from windrow.io.storage.filesystems import Files, is_visible, join_path

Mode = Literal["error", "overwrite", "append", "resume"]

_MANIFEST = re.compile(r"_manifest-[0-9a-f]+\.json")
_MARKER = re.compile(r"_part-.*-[0-9a-f]+\.json")
_READING_THREADS = 16
# The name of a job that resumes is so many digests of so many characters, of what determines its files.
NAME_PARTS = ("data or operations on it", "transforms", "arguments of the write", "columns or types")
DIGEST_CHARS = 8
_RESUMED = re.compile(
    rf"(?:^|/)_?(?:part|manifest)-(?:.*-)?([0-9a-f]{{{DIGEST_CHARS * len(NAME_PARTS)}}})\.[^/]*$"
)


@dataclass(frozen=True)
class WriteJob:
    """One write job: ``name`` identifies its files in the directory; ``schema`` includes partition columns."""

    name: str
    store: Store
    sink: Sink
    schema: pa.Schema
    partition_by: tuple[str, ...]
    # whether an interrupted write is to go on later: then its name is made of digests of `NAME_PARTS`
    resumes: bool = False

    def path(self, directory: str, label: str) -> str:
        """The path of a file; deterministic, so that a retry overwrites it."""
        return f"{directory}part-{label}-{self.name}{self.sink.suffix}"


def list_replaced(store: Store, mode: Mode, sources: Collection[str]) -> tuple[str, ...]:
    """List the files that a successful write replaces.

    Raises a PlanError if ``mode`` does not permit replacing what exists, or the pipeline reads from it:
    ``sources`` are the paths of the files and directories that it reads.
    """
    if mode not in get_args(Mode):
        raise PlanError(f"mode={mode!r} must be 'error', 'overwrite', 'append' or 'resume'")
    if mode == "resume":
        # `check_begun` lists what is there
        return ()
    with mapped_errors(store, store.url):
        listed = store.list_files()
    there = [path for path in listed if not is_temporary(path)]
    if mode == "append":
        return ()
    if mode == "error":
        if there:
            raise PlanError(
                f"{store.url} is not empty ({len(there):,} files, such as {there[0]}): give another path, "
                "mode='append' to add to it, or mode='overwrite' to replace it"
            )
        return ()
    if there and store.is_root:
        raise PlanError(f"mode='overwrite' would replace all of {store.url}: give a directory in it")
    replaced = tuple(path for path in listed if _is_ours(path) or is_visible(path))
    if read := _find_read(store, replaced, sources):
        raise PlanError(
            f"mode='overwrite' would replace what is being read, {join_path(store.url, min(read))}: write elsewhere"
        )
    return replaced


def begin(store: Store, replaced: Sequence[str]) -> tuple[str, ...]:
    """Remove the old manifests; return the directories that the write will create, innermost first."""
    with mapped_errors(store, store.url):
        store.remove([path for path in replaced if _MANIFEST.fullmatch(path)])
        return store.missing_folders() if isinstance(store, LocalStore) else ()


def commit(
    job: WriteJob, files: Sequence[WrittenFile], replaced: Collection[str], failed_rows: int = 0
) -> WriteResult:
    """Remove replaced files and leftovers of failed attempts, then write the manifest."""
    manifest = manifest_name(job.name)
    data = manifest_bytes(
        format=job.sink.name,
        job=job.name,
        schema=job.schema,
        partition_by=job.partition_by,
        files=files,
        failed_rows=failed_rows,
    )
    with mapped_errors(job.store, f"{job.store.url}/{manifest}"):
        written = {file.path for file in files}
        mine = {path for path in job.store.list_files() if job.name in path}
        if lost := written - mine:
            raise SourceError(
                f"{job.store.url}/{min(lost)}: was written and is missing. Where Ray runs on several machines, "
                "give a path that all of them share, or object storage"
            )
        if not job.resumes:
            job.store.remove([*replaced, *(mine - written)])
        job.store.put(manifest, lambda stream: stream.write(data))
        if job.resumes:
            # The markers must outlive an interruption here; from now on the manifest stands for them. Another process
            # can write the same: its manifest is this one, and its temporary files are its own.
            job.store.remove([path for path in mine - written - {manifest} if not is_temporary(path)])
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return WriteResult(job.store.url, tuple(files), rows, size, manifest, failed_rows)


def abandon(job: WriteJob, made: Sequence[str]) -> None:
    """Remove the files of a failed write, and the directories that it created and that are empty now."""
    job.store.remove([path for path in job.store.list_files() if job.name in path])
    if isinstance(job.store, LocalStore):
        job.store.remove_empty(made)


def lie_within(inner: Store, outer: Store) -> bool:
    """Whether a directory is another one, or lies below it."""
    return _place(outer.url) in set(_above(_place(inner.url)))


def _find_read(store: Store, relatives: Collection[str], sources: Collection[str]) -> list[str]:
    """The files of a store that are sources or lie below one, with links and aliases resolved."""
    if not relatives or not sources:
        return []
    # sources are named with their scheme
    root = Files(store.root, store.filesystem).url if isinstance(store, ArrowStore) else store.url
    read = {_place(source) for source in sources}
    places = ((relative, _place(join_path(root, relative))) for relative in relatives)
    return [path for path, place in places if not read.isdisjoint(_above(place))]


def _place(path: str) -> str:
    """The canonical name of a path: resolved on local disk, merely normalised elsewhere."""
    scheme, _, rest = path.rpartition("://")
    if scheme in ("", "file", "local"):
        return forward_slashes(os.path.realpath(forward_slashes(rest)))
    return f"{scheme}://{posixpath.normpath(rest.strip('/'))}"


def _above(place: str) -> Iterator[str]:
    """A path and all its parent directories."""
    while place:
        yield place
        above = place.rpartition("/")[0]
        place = "" if above.endswith("/") else above


def _is_ours(path: str) -> bool:
    return is_temporary(path) or any(kind.fullmatch(path) for kind in (_MANIFEST, _MARKER))


@dataclass(frozen=True)
class FinishedPart:
    """What a task has written: the files of a part, a message for each corrupt block, and the rows put aside.

    The files of these are known of the parts that this attempt has written.
    """

    files: tuple[WrittenFile, ...]
    corrupt: tuple[str, ...] = ()
    failed_rows: int = 0
    failed_files: tuple[str, ...] = ()


def mark_finished(job: WriteJob, label: str, part: FinishedPart) -> None:
    """Write the marker of a part."""
    document = {
        "files": [vars(file) for file in part.files],
        "corrupt": list(part.corrupt),
        "failed_rows": part.failed_rows,
    }
    data = json.dumps(document).encode()
    name = _marker_name(job, label)
    with mapped_errors(job.store, f"{job.store.url}/{name}"):
        job.store.put(name, lambda stream: stream.write(data))


def check_begun(store: Store, name: str) -> dict[str, int]:
    """The sizes of the files of jobs whose names begin with ``name``; a `PlanError` if there are others."""
    with mapped_errors(store, store.url):
        listed = {path: size for path, size in store.sizes().items() if not is_temporary(path)}
    others = [path for path in listed if f"-{name}" not in path]
    if others:
        raise PlanError(
            f"mode='resume' goes on with a write of the same data, transforms and format, and {others[0]} does not "
            f"belong to one{_describe_other(others[0], name)}: give another path, or mode='overwrite' to write "
            "everything again"
        )
    return listed


def find_finished(job: WriteJob) -> WriteResult | dict[str, FinishedPart]:
    """The result of a job that has ended already, or its finished parts by label.

    Raises a `PlanError` if the directory holds files of anything else.
    """
    store = job.store
    listed = check_begun(store, job.name)
    with mapped_errors(store, store.url):
        pattern = re.compile(re.escape(_marker_name(job, "\0")).replace("\0", "(.*)"))
        found = [match for match in map(pattern.fullmatch, listed) if match is not None]
        if manifest_name(job.name) in listed:
            result = parse_manifest(store.url, manifest_name(job.name), store.get(manifest_name(job.name)))
            if _are_complete(result.files, listed):
                # of a commit that was interrupted after its manifest
                store.remove([match[0] for match in found])
                return result
        with ThreadPoolExecutor(_READING_THREADS, "windrow-markers") as threads:
            parts = list(threads.map(lambda match: _read(store, match[0]), found))
    return {
        match[1]: part
        for match, part in zip(found, parts, strict=True)
        if part is not None and _are_complete(part.files, listed)
    }


def _describe_other(path: str, name: str) -> str:
    """What a write that resumes, one of whose files this is, does not have in common with that of a name."""
    found = _RESUMED.search(path)
    if found is None:
        return ""
    size = DIGEST_CHARS
    pairs = zip(NAME_PARTS, range(0, len(name), size), strict=False)
    differing = [part for part, at in pairs if found[1][at : at + size] != name[at : at + size]]
    return f", but to one with other {' and other '.join(differing)}" if differing else ""


def _are_complete(files: Sequence[WrittenFile], listed: Mapping[str, int]) -> bool:
    return all(listed.get(file.path) == file.bytes for file in files)


def _marker_name(job: WriteJob, label: str) -> str:
    # readers skip names that begin with "_"
    return f"_part-{label}-{job.name}.json"


def _read(store: Store, name: str) -> FinishedPart | None:
    """Read a marker; None if it is gone, since another process has committed the job, or is not complete."""
    try:
        return _parse(store.get(name))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _parse(data: bytes) -> FinishedPart:
    document = json.loads(data)
    files: Sequence[dict[str, object]] = document["files"]
    return FinishedPart(
        tuple(WrittenFile(**file) for file in files),  # type: ignore[arg-type]
        tuple(document["corrupt"]),
        document["failed_rows"],
    )
