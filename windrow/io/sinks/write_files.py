"""Write rows as files of a job: assign rows to files by partition, size and name, and note each file's SHA-256."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.arrow_support import empty_table
from windrow.core.chosen_rows import take_rows
from windrow.core.errors import PlanError
from windrow.io.sinks.commit import WriteJob
from windrow.io.sinks.open_store import mapped_errors
from windrow.io.sinks.written_manifest import WrittenFile

# a file can exceed the target by a quarter
_SLACK = 4
_NULL = "__HIVE_DEFAULT_PARTITION__"


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
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._digest.update(view)
        self.size_bytes += len(view)
        return len(view)


class FileRows(NamedTuple):
    """The rows of one file, without the partition columns."""

    directory: str  # relative to the target directory: empty, or ends in "/"
    number: int  # among the files of its directory that come from the same part
    tables: tuple[pa.Table, ...]


@dataclass(frozen=True)
class Layout:
    """How rows are split into files: by columns whose values become directories, and by size.

    ``target_bytes`` are decoded, and approximate; None: one file for each table and directory.
    """

    partition_by: tuple[str, ...]
    target_bytes: int | None

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The columns stored in the files; raise a PlanError for columns that cannot become directories."""
        if len(set(self.partition_by)) < len(self.partition_by):
            raise PlanError(f"partition_by={list(self.partition_by)} names a column twice")
        for name in self.partition_by:
            if name not in schema.names:
                raise PlanError(f"partition_by: there is no column {name!r}, only {', '.join(schema.names)}")
            _check_key(schema.field(name))
        left = [field for field in schema if field.name not in self.partition_by]
        if self.partition_by and not left:
            raise PlanError("partition_by names every column: leave out one, so that files have rows")
        for field in left if self.partition_by else ():
            _check_divisible(field)
        return pa.schema(left)

    def split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The rows of each directory, in order; directories in order of first appearance."""
        if not self.partition_by:
            yield "", table
            return
        directories, codes = _directories([table.column(name) for name in self.partition_by])
        order = np.argsort(codes, kind="stable")
        rows = take_rows(table.drop_columns(list(self.partition_by)), order)
        starts = np.searchsorted(codes[order], np.arange(len(directories) + 1))
        keys = zip(
            *(table.column(name).take(pa.array(directories)) for name in self.partition_by), strict=True
        )
        for at, values in enumerate(keys):
            names = [_segment(*pair) for pair in zip(self.partition_by, values, strict=True)]
            yield "".join(f"{name}/" for name in names), rows.slice(starts[at], starts[at + 1] - starts[at])


class FileSplitter:
    """Buffers rows until they fill a file; holds at most twice the target size, plus one table.

    Without a target, each table is split by itself.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._held: dict[str, list[pa.Table]] = {}
        self._bytes: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def add(self, table: pa.Table) -> Iterator[FileRows]:
        """Add rows; yield the files that are full."""
        target = self._layout.target_bytes
        for directory, rows in self._layout.split(table) if table.num_rows else ():
            if target is None:
                yield FileRows(directory, 0, (rows,))
                continue
            yield from self._fill(directory, rows, target)
        while target is not None and sum(self._bytes.values()) > 2 * target:
            yield self._take(max(self._bytes, key=self._bytes.__getitem__))

    def finish(self) -> Iterator[FileRows]:
        """Yield the files of the remaining rows."""
        for directory in list(self._held):
            yield self._take(directory)

    def _fill(self, directory: str, rows: pa.Table, target: int) -> Iterator[FileRows]:
        while rows.num_rows:
            held, fit = self._bytes.get(directory, 0), rows.num_rows
            # tolerate a slightly larger file, to avoid another one of a few rows
            remaining_bytes = arrow_bytes(rows)
            if held + remaining_bytes > target + target // _SLACK:
                fit = min(fit, max(0, target - held) * fit // remaining_bytes)
            if not fit and held:
                yield self._take(directory)
                continue
            fit = max(1, fit)
            head, rows = rows.slice(0, fit), rows.slice(fit)
            self._held.setdefault(directory, []).append(head)
            self._bytes[directory] = held + arrow_bytes(head)
            if rows.num_rows:
                yield self._take(directory)

    def _take(self, directory: str) -> FileRows:
        tables = tuple(self._held.pop(directory))
        del self._bytes[directory]
        number = self._numbers.get(directory, 0)
        self._numbers[directory] = number + 1
        return FileRows(directory, number, tables)


def _check_key(field: pa.Field) -> None:
    if not field.name:
        raise PlanError(
            "partition_by: a column has the empty name '', and readers take no column from the directory "
            "'=value': rename it in map_batches"
        )
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise PlanError(
            f"partition_by: column {field.name!r} is {field.type}, and a directory's name can only hold integers "
            "and text: cast it to pa.string() in map_batches"
        )


def _check_divisible(field: pa.Field) -> None:
    try:
        pa.array([], field.type).take(pa.array([], pa.int64()))
    except pa.ArrowNotImplementedError as error:
        raise PlanError(
            f"partition_by: column {field.name!r} is {field.type}, whose rows Arrow cannot divide: cast it in "
            "map_batches (views to pa.large_string())"
        ) from error


def _directories(keys: Sequence[pa.ChunkedArray]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(directories,) the first row of each, and (rows,) the directory of each row."""
    codes: NDArray[np.int64] = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        column = key.combine_chunks()
        # an existing dictionary can have unused or repeated values
        plain = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        indices = plain.dictionary_encode(null_encoding="encode").indices.to_numpy()
        _, codes = np.unique(codes * (1 + int(indices.max())) + indices, return_inverse=True)
    _, firsts = np.unique(codes, return_index=True)
    ranks = np.argsort(np.argsort(firsts))
    return np.sort(firsts), ranks[codes]


def _segment(key: str, value: Any) -> str:
    text = value.as_py()
    if text is None:
        return f"{quote(key, safe='')}={_NULL}"
    encoded = quote(str(text), safe="")
    # escape the first letter of text that equals the name for null
    return f"{quote(key, safe='')}={encoded.replace('_', '%5F', 1) if encoded == _NULL else encoded}"
