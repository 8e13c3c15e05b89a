"""Markers of finished parts, by which an interrupted write goes on: what is there is neither read nor written again.

A marker is a small JSON file that is written after all files of its part. Commit removes the markers, like all other
files of the job that the manifest does not name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from windrow.core.errors import PlanError
from windrow.io.sinks.commit import WriteJob
from windrow.io.sinks.open_store import mapped_errors
from windrow.io.sinks.store import Store, is_temporary
from windrow.io.sinks.written_manifest import WriteResult, WrittenFile, manifest_name, parse_manifest

__all__ = ["FinishedPart", "find_finished", "mark_finished"]

_READING_THREADS = 16


@dataclass(frozen=True)
class FinishedPart:
    """What a task has written: the files of a part, a message for each corrupt block, and the rows written aside."""

    files: tuple[WrittenFile, ...]
    corrupt: tuple[str, ...] = ()
    failed_rows: int = 0


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


def find_finished(job: WriteJob) -> WriteResult | dict[str, FinishedPart]:
    """The result of a job that has ended already, or its finished parts by label.

    Raises a `PlanError` if the directory holds files of anything else.
    """
    store = job.store
    with mapped_errors(store, store.url):
        listed = {path: size for path, size in store.sizes().items() if not is_temporary(path)}
        others = [path for path in listed if job.name not in path]
        if others:
            raise PlanError(
                f"mode='resume' goes on with a write of the same data, transforms and format, and {others[0]} does "
                "not belong to one: give another path, or mode='overwrite' to write everything again"
            )
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
