"""The result of a write: its files, and the manifest that certifies that they are complete."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.core.byte_sizes import format_bytes
from windrow.io.storage.filesystems import join_path

_VERSION = 1


@dataclass(frozen=True)
class WrittenFile:
    """One written file.

    Attributes
    ----------
    path
        Its path relative to the target directory.
    rows, bytes
        Its number of rows, and its size.
    sha256
        The SHA-256 of its bytes, in hexadecimal.
    """

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, repr=False)
class WriteResult:
    """The result of a ``write_*`` call.

    Attributes
    ----------
    path
        The target directory, without credentials.
    files
        The files in row order, as ``WrittenFile`` values.
    rows, bytes
        Totals over all files.
    manifest
        The manifest's path relative to the directory: JSON, written after all files.
    failed_rows
        With ``failed_rows=...``, the number of rows for which a transform failed, which were written there instead.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet as pq, windrow
    >>> pq.write_table(pa.table({"x": range(6)}), "numbers.parquet")
    >>> written = windrow.read_parquet("numbers.parquet").write_csv("as-csv", mode="overwrite")
    >>> written.rows, written.bytes, len(written.files)
    (6, 16, 1)
    """

    path: str
    files: tuple[WrittenFile, ...]
    rows: int
    bytes: int
    manifest: str
    failed_rows: int = 0

    def __repr__(self) -> str:
        size = format_bytes(self.bytes)
        failed = f", {self.failed_rows:,} failed" if self.failed_rows else ""
        return f"WriteResult({self.path!r}: {len(self.files):,} files, {self.rows:,} rows, {size}{failed})"

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files, ready to be read again."""
        return tuple(join_path(self.path, file.path) for file in self.files)


def manifest_name(job: str) -> str:
    """The name of a write's manifest; readers skip names that begin with ``_``."""
    return f"_manifest-{job}.json"


def manifest_bytes(
    *,
    format: str,
    job: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    files: Sequence[WrittenFile],
    failed_rows: int = 0,
) -> bytes:
    """Serialize a manifest as JSON."""
    document: dict[str, Any] = {
        "windrow_manifest": _VERSION,
        "format": format,
        "job": job,
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
        "schema": [{"name": field.name, "type": str(field.type)} for field in schema],
        "partition_by": list(partition_by),
        "files": [vars(file) for file in files],
    }
    if failed_rows:
        document["failed_rows"] = failed_rows
    return json.dumps(document, indent=1).encode()


def parse_manifest(path: str, name: str, data: bytes) -> WriteResult:
    """The result that a manifest states."""
    document = json.loads(data)
    files = tuple(WrittenFile(**file) for file in document["files"])
    failed = document.get("failed_rows", 0)
    return WriteResult(path, files, document["rows"], document["bytes"], name, failed)
