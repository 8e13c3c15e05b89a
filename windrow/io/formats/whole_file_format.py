"""Formats of one row per file, such as arbitrary bytes, and their block reader: many small files are one part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.source import BlockAddress
from windrow.core.system.files import open_file, readv
from windrow.io.catalog.file_format import FileReading, Survey, join_tables
from windrow.io.formats.block_files import check_unchanged, listed_stamp
from windrow.io.formats.row_group_format import group_by_bytes
from windrow.io.storage.file_versions import RowGroups, changed, version_from_stat
from windrow.io.storage.filesystems import Files

# Remote files that are read concurrently. Each takes two requests in turn, for its bytes and for its version.
_READ_THREADS = 32
# larger remote files are fetched in several concurrent requests
_RANGE_BYTES = 16 * 2**20
_COLUMN = "bytes"
# a row has a cost even if its file is empty
_MIN_BYTES = 64


@dataclass(frozen=True, eq=False)
class Contents:
    """The concatenated bytes of some files: file i is ``data[ends[i]:ends[i + 1]]``."""

    paths: Sequence[str]
    ends: NDArray[np.int64]
    data: NDArray[np.uint8]


class WholeFileFormat:
    """A `windrow.io.catalog.file_format.SurveyedFormat` that decodes each file to one row.

    Subclasses are frozen, picklable values with the user's options.
    """

    rows_known = True
    joins_files = True
    cut_sizes = None

    def reader(self, reading: FileReading) -> WholeFileReader:
        return WholeFileReader(**vars(reading), format=self)

    def estimate_row_bytes(self, size_bytes: int) -> int:
        """Estimate the in-memory bytes of the row of a file of this size."""
        raise NotImplementedError

    def columns(self, files: Files, contents: Contents, names: Sequence[str]) -> Mapping[str, pa.Array]:
        """(files,) values of at least the columns ``names``; a CorruptBlockError names a file that is corrupt."""
        raise NotImplementedError


@dataclass(frozen=True)
class WholeFileReader(FileReading):
    """Reads blocks of a `WholeFileFormat`."""

    format: WholeFileFormat

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, rows in stored order; remote files are read concurrently."""
        return join_tables(self.parts(address))

    def parts(self, address: BlockAddress) -> Iterator[pa.Table]:
        needed = self.needed_columns()
        stored = [field.name for field in self.stored_of(needed)]
        for part in group_by_bytes(address.locator, self._estimate_bytes):
            from_paths = self.partitions.table([groups.path for groups in part])
            # path columns need no read
            found = self.format.columns(self.files, read_contents(self.files, part), stored) if stored else {}
            columns = [found[name] if name in found else from_paths.column(name) for name in needed.names]
            yield self.keep_rows(pa.Table.from_arrays(columns, schema=needed), self._locate(part))

    def _locate(self, part: Sequence[RowGroups]) -> Callable[[int], str]:
        return lambda row: self.files.name(part[row].path)

    def _estimate_bytes(self, groups: RowGroups) -> int:
        return self.format.estimate_row_bytes(groups.size_bytes)


def read_contents(files: Files, part: Sequence[RowGroups]) -> Contents:
    """Read whole files and verify that none has changed since it was listed."""
    ends = np.cumsum([0, *(groups.size_bytes for groups in part)], dtype=np.int64)
    data = np.empty(int(ends[-1]), np.uint8)
    bounds = ends.tolist()
    outs = [data.data[start:stop] for start, stop in pairwise(bounds)]
    if files.local:
        for groups, out in zip(part, outs, strict=True):
            _read_local(files, groups, out)
    else:
        with ThreadPoolExecutor(min(_READ_THREADS, len(part)), "windrow-files") as threads:
            list(threads.map(lambda groups, out: _read_remote(files, groups, out), part, outs))
    return Contents([groups.path for groups in part], ends, data)


def _read_local(files: Files, groups: RowGroups, out: memoryview) -> None:
    """Read a file with as few system calls as possible, since there are many files."""
    try:
        descriptor = open_file(files.path(groups.path), os.O_RDONLY)
        try:
            listed = listed_stamp(files, groups) or version_from_stat(os.fstat(descriptor)).stamp
            done = 0
            while done < len(out) and (count := readv(descriptor, [out[done:]])):
                done += count
            # fstat the open descriptor: the path can refer to another file by now
            now = version_from_stat(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        if now.stamp != listed or now.size_bytes != len(out) or done != len(out):
            raise changed(files.name(groups.path), groups, now)
    except Exception:
        with files.mapped_errors(files.name(groups.path)):
            raise


def _read_remote(files: Files, groups: RowGroups, out: memoryview) -> None:
    with check_unchanged(files, groups, files.name(groups.path)):
        remote = files.open_remote(groups.path, len(out))
        if len(out) > _RANGE_BYTES:
            remote.fetch([(0, len(out))])
        if len(out):
            out[:] = np.frombuffer(remote.read(len(out)), np.uint8).data


@dataclass(frozen=True)
class BinaryFormat(WholeFileFormat):
    """One row per file: its bytes. No file is opened before it is read."""

    name: str = "binary"
    options: str = ""

    def survey(self, files: Files, paths: Sequence[str], file_bytes: NDArray[np.int64]) -> Survey:
        schema = pa.schema([pa.field(_COLUMN, pa.large_binary())])
        return Survey(schema, file_bytes, {_COLUMN: file_bytes})

    def estimate_row_bytes(self, size_bytes: int) -> int:
        return size_bytes + _MIN_BYTES

    def columns(self, files: Files, contents: Contents, names: Sequence[str]) -> Mapping[str, pa.Array]:
        """(files,) the bytes, referencing the buffer they were read into."""
        return {_COLUMN: binary_column(contents.ends, contents.data)}


def binary_column(ends: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """(len(ends) - 1,) slices of a buffer as a column, without a copy."""
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, buffers, null_count=0)
