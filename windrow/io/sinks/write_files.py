"""Write rows as the files of a write job, with the size and SHA-256 of each."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa

from windrow.core.empty_tables import empty_table
from windrow.io.sinks.commit import WriteJob
from windrow.io.sinks.file_splitting import FileRows, FileSplitter, Layout
from windrow.io.sinks.open_store import mapped_errors
from windrow.io.sinks.written_manifest import WrittenFile

__all__ = ["DigestingStream", "write_empty", "write_rows"]


def write_rows(
    job: WriteJob, layout: Layout, tables: Iterable[pa.Table], part: str, folder: str = ""
) -> Iterator[WrittenFile]:
    """Write tables as the files of one part; without rows, write nothing.

    The same rows under the same ``part`` give the same files. ``folder`` is relative to the target
    directory: empty, or ends in ``/``.
    """
    splitter = FileSplitter(layout)
    for table in tables:
        for rows in splitter.add(table):
            yield _write_file(job, layout, rows, part, folder)
    for rows in splitter.finish():
        yield _write_file(job, layout, rows, part, folder)


def write_empty(job: WriteJob, layout: Layout, folder: str = "") -> WrittenFile:
    """Write a file without rows, so that readers can find the schema."""
    rows = FileRows("", 0, (empty_table(layout.stored(job.schema)),))
    return _write_file(job, layout, rows, "00000", folder)


def _write_file(job: WriteJob, layout: Layout, rows: FileRows, part: str, folder: str) -> WrittenFile:
    numbers = [part] if layout.target_bytes is None else [part, f"{rows.number:05d}"]
    label = "-".join(number for number in numbers if number)
    path = job.path(f"{folder}{rows.directory}", label)
    written: list[DigestingStream] = []

    def fill(file: BinaryIO) -> None:
        written[:] = [stream := DigestingStream(file)]
        job.sink.write(rows.tables, cast("BinaryIO", stream), f"{folder}{rows.directory}{label}")

    with mapped_errors(job.store, f"{job.store.url}/{path}"):
        job.store.put(path, fill)
    (stream,) = written
    count = sum(table.num_rows for table in rows.tables)
    return WrittenFile(path, count, stream.size_bytes, stream.hexdigest())


class DigestingStream(io.RawIOBase):
    """Counts the bytes written to another stream, and hashes them; closing it leaves that stream open."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self.size_bytes = 0
        self._stream = stream
        self._digest = hashlib.sha256()

    def hexdigest(self) -> str:
        """The SHA-256 of the bytes written so far."""
        return self._digest.hexdigest()

    def writable(self) -> bool:
        """Always true."""
        return True

    def tell(self) -> int:
        """The position of the next byte."""
        return self.size_bytes

    def write(self, data: Any) -> int:
        """Write all bytes of ``data``."""
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self.size_bytes += len(view)
        return len(view)
