"""NumPy files: ``.npy`` with one array, and ``.npz`` with several of equal length.

Headers are parsed here because NumPy's own functions need a Python file object, and can unpickle.
See "NumPy enhancement proposal 1 - a simple file format for NumPy arrays".
"""

from __future__ import annotations

import ast
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.io.catalog.manifest import FragmentFacts, estimate_variable
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.numpy_types import column_type, row_memory_bytes, to_column
from windrow.io.formats.row_group_format import PART_BYTES, RowGroupFormat, corruption_is_invalid

_NPY, _ZIP = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")
_SUFFIX = ".npy"
# headers are padded to 64 bytes, and exceed this only with very many fields
_HEAD_BYTES = 4096
# a longer header can only be malicious
_MAX_HEADER_BYTES = 2**20
_ZIP_HEADER_BYTES = 30
# prefetched at the beginning of each archive member, to parse its header: zipfile reads ahead
_MEMBER_BYTES = 16 * 1024
_ZIP_TAIL_BYTES = 64 * 1024

ReadRange = Callable[[int, int], Any]


@dataclass(frozen=True)
class _StoredArray:
    """An array in a file; its ``name`` is empty in a ``.npy`` file.

    In Fortran order, values of adjacent rows are contiguous. ``start`` is the offset of its values in the
    file, or in the decompressed member. ``compressed_range`` is the byte range of a compressed member,
    which has to be read from its beginning.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int
    compressed_range: tuple[int, int] | None = None

    @property
    def row_bytes(self) -> int:
        return int(self.dtype.itemsize) * prod(self.shape[1:])

    def ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """The byte ranges of rows ``first`` to ``last``: one, or several in Fortran order."""
        if self.compressed_range is not None:
            return [self.compressed_range]
        if not self.row_bytes:
            return []
        if not self.fortran or len(self.shape) == 1:
            return [(self.start + first * self.row_bytes, self.start + last * self.row_bytes)]
        size, rows = self.dtype.itemsize, self.shape[0]
        begins = range(self.start, self.start + rows * self.row_bytes, rows * size)
        return [(begin + first * size, begin + last * size) for begin in begins]


def _find_arrays(file: OpenFile) -> list[_StoredArray]:
    """Locate the arrays of a file, from headers only; a ValueError if it is corrupt or holds none."""
    magic = bytes(file.read_range(0, min(6, file.size_bytes)))
    if magic == _NPY:
        array = _parse(file.read_range, 0, file.size_bytes)
        return [_checked(array, file.size_bytes)]
    if magic[:4] not in _ZIP:
        raise ValueError("is not an .npy or .npz file: it does not begin like one")
    file.fetch([(max(0, file.size_bytes - _ZIP_TAIL_BYTES), file.size_bytes)])
    with _archive(file) as archive:
        begins = [info.header_offset for info in archive.infolist()]
        file.fetch([(begin, min(begin + _MEMBER_BYTES, file.size_bytes)) for begin in begins])
        return [_member(file, archive, info) for info in archive.infolist()]


def _archive(file: OpenFile) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file.file)
    except (zipfile.BadZipFile, ValueError, OverflowError) as error:
        raise zipfile.BadZipFile(f"no whole .npz: {error}") from error


def _read_rows(file: OpenFile, array: _StoredArray, first: int, last: int) -> NDArray[Any]:
    """(last - first, ...) a range of rows, without a copy if they are contiguous."""
    shape = (last - first, *array.shape[1:])
    if array.compressed_range is not None:
        with zipfile.ZipFile(file.file) as archive:
            data = archive.read(array.name + _SUFFIX)[array.start :]
        if not array.row_bytes:
            return np.zeros(shape, array.dtype)
        values = np.frombuffer(data, array.dtype)
        whole = values.reshape(array.shape[::-1]).T if array.fortran else values.reshape(array.shape)
        return whole[first:last]
    ranges = array.ranges(first, last)
    if len(ranges) == 1:
        return np.frombuffer(file.read_range(*ranges[0]), array.dtype).reshape(shape)
    gathered = np.zeros((len(ranges), last - first), array.dtype)
    for column, span in zip(gathered, ranges, strict=True):
        column[:] = np.frombuffer(file.read_range(*span), array.dtype)
    return gathered.reshape(*array.shape[:0:-1], last - first).T if ranges else np.zeros(shape, array.dtype)


def _member(file: OpenFile, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _StoredArray:
    if not info.filename.endswith(_SUFFIX):
        raise ValueError(f"holds {info.filename!r}, which is not an array: it was not written by np.savez")
    name = info.filename.removesuffix(_SUFFIX)
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as member:
            head = member.read(_HEAD_BYTES)
            if len(head) >= 12 and _header_end(head) > len(head):
                head += member.read(_header_end(head) - len(head))
        array = _parse(lambda start, stop: head[start:stop], 0, info.file_size)
        stop = min(info.header_offset + _MEMBER_BYTES + info.compress_size, file.size_bytes)
        compressed_range = (info.header_offset, stop)
        return replace(_checked(array, info.file_size), name=name, compressed_range=compressed_range)
    local = bytes(file.read_range(info.header_offset, info.header_offset + _ZIP_HEADER_BYTES))
    begin = info.header_offset + _ZIP_HEADER_BYTES + sum(struct.unpack_from("<2H", local, 26))
    return replace(_checked(_parse(file.read_range, begin, file.size_bytes), file.size_bytes), name=name)


def _parse(read: ReadRange, begin: int, end: int) -> _StoredArray:
    """Parse the header at byte ``begin``; the file or member ends at ``end``."""
    head = bytes(read(begin, min(begin + _HEAD_BYTES, end)))
    if head[:6] != _NPY or len(head) < 12:
        raise ValueError("holds something that is not an array")
    length = _header_end(head)
    if length > min(_MAX_HEADER_BYTES, end - begin):
        raise ValueError(f"has a header that claims {length:,} bytes")
    if length > len(head):
        head = bytes(read(begin, begin + length))
    text = head[12 if head[6] > 1 else 10 : length].decode("utf-8" if head[6] > 2 else "latin-1")
    try:
        header = ast.literal_eval(text.strip())
        dtype = np.lib.format.descr_to_dtype(header["descr"])
        shape = tuple(int(size) for size in header["shape"])
        fortran = bool(header["fortran_order"])
    except (SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise ValueError(f"has a header that cannot be parsed ({type(error).__name__}: {error})") from error
    if min(shape, default=0) < 0:
        raise ValueError(f"has a header that claims the shape {shape}")
    return _StoredArray("", dtype, shape, fortran, begin + length)


def _header_end(head: bytes) -> int:
    wide = head[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", head, 8)
    return int(length) + (12 if wide else 10)


def _checked(array: _StoredArray, size_bytes: int) -> _StoredArray:
    needed = array.start + prod(array.shape) * array.dtype.itemsize
    if not array.dtype.hasobject and needed > size_bytes:
        raise ValueError(f"is truncated: it needs {needed:,} bytes and has {size_bytes:,}")
    return array


@dataclass(frozen=True)
class NumpyFormat(RowGroupFormat):
    """Arrays whose first dimension is rows; row groups are row ranges of some MiB.

    ``column`` names the array of a ``.npy`` file; ``.npz`` members and fields of structured arrays have
    their own names.
    """

    joins_files = True
    corruption = (
        ValueError,
        KeyError,
        EOFError,
        NotImplementedError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    )

    column: str = "data"
    name: str = "NumPy"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise PlanError(f"column={self.column!r} must be the name of a column")

    @property
    def options(self) -> str:
        return f"column={self.column!r}"

    def summarise(self, file: OpenFile) -> FragmentFacts:
        arrays = _find_arrays(file)
        _check_lengths(arrays)
        columns = {name: column for array in arrays for name, column in self._columns(array).items()}
        rows = [last - first for first, last in _cut_rows(arrays)]
        schema = pa.schema([pa.field(name, column_type(*column)) for name, column in columns.items()])
        row_bytes = sum(array.row_bytes for array in arrays)
        means = {name: row_memory_bytes(*column) for name, column in columns.items()}
        variable = estimate_variable(schema, rows, means)
        # NaT becomes null, and headers do not count NaTs
        nulls = {name: None if dtype.kind in "mM" else 0 for name, (dtype, _) in columns.items()}
        return FragmentFacts(schema, rows, [count * row_bytes for count in rows], variable, nulls)

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        with corruption_is_invalid(self.corruption):
            every = _find_arrays(file)
            arrays = [array for array in every if set(self._names(array)) & set(schema.names)] or every[:1]
            cuts = _cut_rows(every)[start:stop]
            file.fetch([span for cut in cuts for array in arrays for span in array.ranges(*cut)])
            for first, last in cuts:
                yield self._table(file, arrays, first, last)

    def _table(self, file: OpenFile, arrays: Sequence[_StoredArray], first: int, last: int) -> pa.Table:
        columns: dict[str, pa.Array] = {}
        for array in arrays:
            rows = _read_rows(file, array, first, last)
            fields = array.dtype.names
            values = {name: rows[name] for name in fields} if fields else {self._names(array)[0]: rows}
            columns.update({name: to_column(column) for name, column in values.items()})
        return pa.table(columns)

    def _columns(self, array: _StoredArray) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The dtype and row shape of each column that an array provides."""
        if not array.dtype.names:
            return {self._names(array)[0]: (array.dtype, array.shape[1:])}
        if array.name or len(array.shape) != 1:
            raise ValueError(
                "holds a structured array in an .npz file or of several dimensions: save its fields"
            )
        fields = {name: array.dtype[name] for name in array.dtype.names}
        return {name: (kind.base, kind.shape) for name, kind in fields.items()}

    def _names(self, array: _StoredArray) -> tuple[str, ...]:
        return array.dtype.names or (array.name or self.column,)


def _check_lengths(arrays: Sequence[_StoredArray]) -> None:
    if not arrays:
        raise ValueError("holds no arrays")
    for array in arrays:
        what = f"array {array.name!r}" if array.name else "its array"
        if not array.shape:
            raise ValueError(f"has no rows: {what} is a single value; save arrays with a dimension of rows")
        if array.shape[0] != arrays[0].shape[0]:
            raise ValueError(
                f"has {array.shape[0]:,} rows of {array.name!r} and {arrays[0].shape[0]:,} of {arrays[0].name!r}: "
                "save arrays of equal first dimension, or in several files"
            )


def _cut_rows(arrays: Sequence[_StoredArray]) -> list[tuple[int, int]]:
    """Split rows into ranges of some MiB; a compressed array has to be read from its beginning: one range."""
    rows = arrays[0].shape[0]
    step = max(1, PART_BYTES // max(1, sum(array.row_bytes for array in arrays)))
    if any(array.compressed_range is not None for array in arrays):
        step = max(1, rows)
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]
