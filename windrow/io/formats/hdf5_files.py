"""Opens HDF5 files with h5py, also in object storage, and finds the columns that their datasets hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.cached_properties import cached_property
from windrow.core.errors import WindrowError
from windrow.core.optional_dependencies import require
from windrow.io.formats.array_columns import ArrayColumn, array_type, stored_row_bytes
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.row_group_format import ChoiceError
from windrow.io.storage.range_reads import SeekableFile, join_ranges
from windrow.io.storage.retries import GaveUpError

# smaller reads, such as those of metadata, are served from pages of this size
_PAGE_BYTES = 64 * 1024
# what h5py says of a file that does not begin like one
_NO_SIGNATURE = "signature not found"
_SHOWN = 12


class Hdf5Error(Exception):
    """The HDF5 library cannot decode a file whose bytes it got."""


def load_h5py() -> Any:
    """Import h5py, and the compression filters of hdf5plugin where it is installed."""
    h5py = require("h5py", "hdf5", "read_hdf5()")
    with suppress(ImportError):
        import_module("hdf5plugin")
    return h5py


@contextmanager
def open_hdf5(file: OpenFile) -> Iterator[tuple[Any, RemoteBytes | None]]:
    """Open a file with h5py, and return what it reads a remote file through; the library reads local files itself.

    What the library cannot decode is an `Hdf5Error`, and what is not HDF5 a ValueError.
    """
    h5py = load_h5py()
    remote = None if file.path is not None else RemoteBytes(file)
    try:
        # some network filesystems cannot lock; that the file stays the same is checked by its version
        with h5py.File(file.path or remote, "r", locking="best-effort" if remote is None else None) as opened:
            yield opened, remote
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        if file.failed or isinstance(error, (WindrowError, GaveUpError, pa.ArrowException)):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if _NO_SIGNATURE in str(error):
            raise ValueError("is not an HDF5 file: it does not begin like one") from error
        raise Hdf5Error(str(error)) from error


class RemoteBytes(SeekableFile):
    """A remote file for h5py: ranges that were prefetched come from memory, small reads from pages.

    h5py calls it while it holds its lock, so `prefetch` waits for the bytes of chunks before.
    """

    def __init__(self, file: OpenFile) -> None:
        super().__init__(file.size_bytes)
        self._file = file
        self._spans: list[tuple[int, int]] = []
        self._pages: dict[int, pa.Buffer] = {}

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read ranges with concurrent requests, and keep them."""
        self._file.fetch(ranges)
        self._spans = join_ranges(ranges, self._size)
        for span in self._spans:
            self._file.read_range(*span)

    def readinto(self, out: Any) -> int:
        start, stop = self._offset, min(self._offset + len(out), self._size)
        if stop <= start:
            return 0
        if stop - start >= _PAGE_BYTES or any(low <= start and stop <= high for low, high in self._spans):
            out[: stop - start] = memoryview(self._file.read_range(start, stop))
        else:
            for page in range(start // _PAGE_BYTES, (stop - 1) // _PAGE_BYTES + 1):
                first = page * _PAGE_BYTES
                low, high = max(start, first), min(stop, first + _PAGE_BYTES)
                out[low - start : high - start] = memoryview(self._page(page))[low - first : high - first]
        self._offset = stop
        return stop - start

    def _page(self, page: int) -> pa.Buffer:
        if page not in self._pages:
            first = page * _PAGE_BYTES
            last = min(first + _PAGE_BYTES, self._size)
            self._pages[page] = self._file.read_range(first, last)
        return self._pages[page]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset of an open file; ``handle`` is h5py's."""

    path: str
    handle: Any

    @property
    def rows(self) -> int:
        """The length of its first dimension; -1 if it has none."""
        shape = self.handle.shape
        return int(shape[0]) if shape else -1

    @property
    def chunk_rows(self) -> int:
        """The rows that are stored, and compressed, together."""
        chunks = self.handle.chunks
        return int(chunks[0]) if chunks else 1

    @cached_property
    def row_bytes(self) -> int:
        """Stored bytes of a row, uncompressed."""
        return stored_row_bytes(self.handle.dtype, self.handle.shape[1:])

    def columns(self, name: str, field: str, *, fields: bool) -> list[ArrayColumn]:
        """One column of a field or of all values, or one of each field of structured values, if ``fields``.

        A ValueError if the dataset has no rows, or they cannot be read.
        """
        self._check_readable()
        dtype, shape = self.handle.dtype, tuple(self.handle.shape[1:])
        inner = dtype.names if fields and dtype.names else (field,)
        try:
            return [
                ArrayColumn(
                    f"{name}/{each}" if inner is dtype.names else name,
                    self.path,
                    each,
                    array_type(dtype[each] if each else dtype, shape, _find_leaf),
                )
                for each in inner
            ]
        except ValueError as error:
            raise ValueError(f"has a dataset {self.path!r} that {error}") from error

    def _check_readable(self) -> None:
        """Raise a ValueError for a dataset that has no rows here, or cannot be decoded."""
        h5py, handle = load_h5py(), self.handle
        if self.rows < 0:
            what = "is empty" if handle.shape is None else "is a single value"
            raise ChoiceError(
                f"has no rows in the dataset {self.path!r}, which {what}: leave it out with a dict of columns="
            )
        others = (
            {source.file_name for source in handle.virtual_sources()} - {"."} if handle.is_virtual else ()
        )
        if handle.external or others:
            raise ValueError(
                f"has a dataset {self.path!r} whose values are in other files, so that changes of these would go "
                "unnoticed: read those files, or write it as one file"
            )
        settings = handle.id.get_create_plist()
        for place in range(settings.get_nfilters()):
            code, _, _, name = settings.get_filter(place)
            if not h5py.h5z.filter_avail(code):
                raise ValueError(
                    f"has a dataset {self.path!r} that is compressed with filter {code} "
                    f"({name.decode(errors='replace')}), which is not installed here: pip install hdf5plugin"
                )

    def chunk_ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """The byte ranges of the chunks that hold some rows, as far as the file states them."""
        identifier, rows = self.handle.id, self.chunk_rows
        if not self.handle.chunks:
            start = identifier.get_offset()
            step = self.row_bytes
            return [] if start is None else [(start + first * step, start + last * step)]
        ranges: list[tuple[int, int]] = []

        def add(chunk: Any) -> None:
            if chunk.chunk_offset[0] < last and chunk.chunk_offset[0] + rows > first:
                ranges.append((chunk.byte_offset, chunk.byte_offset + chunk.size))

        identifier.chunk_iter(add)
        return ranges


def find_datasets(opened: Any) -> dict[str, Dataset]:
    """All datasets of a file by path, in the order of their names; links to others are not followed."""
    found: dict[str, Dataset] = {}
    kind = load_h5py().Dataset

    def add(path: str, item: Any) -> None:
        if isinstance(item, kind):
            found[path] = Dataset(path, item)

    opened.visititems(add)
    return found


def find_dataset(opened: Any, path: str, known: Mapping[str, Dataset]) -> tuple[Dataset, str]:
    """The dataset at a path, or the structured one with a field of this name, and the field."""
    if path in known:
        return known[path], ""
    above, _, field = path.rpartition("/")
    if above in known and field in (known[above].handle.dtype.names or ()):
        return known[above], field
    link = opened.get(path, getlink=True) if path in opened or _is_link(opened, path) else None
    if link is not None and type(link).__name__ == "ExternalLink":
        raise ValueError(
            f"has an external link {path!r} to {link.filename!r}, so that changes of that file would go unnoticed: "
            "read that file"
        )
    target = opened.get(path)
    if isinstance(target, load_h5py().Dataset):
        # a soft link, or one more name of a dataset
        return Dataset(path, target), ""
    raise ChoiceError(f"has no dataset {path!r}; it has {describe_datasets(known.values())}")


def _is_link(opened: Any, path: str) -> bool:
    try:
        return opened.get(path, getlink=True) is not None
    except KeyError:
        return False


def describe_datasets(datasets: Collection[Dataset]) -> str:
    """The datasets with their shapes and types, for messages."""
    if not datasets:
        return "none"
    shown = [f"{each.path!r} {each.handle.shape} {_format_type(each.handle)}" for each in datasets]
    more = f" and {len(shown) - _SHOWN:,} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _format_type(handle: Any) -> str:
    text = load_h5py().check_string_dtype(handle.dtype)
    return "text" if text is not None else str(handle.dtype)


def _find_leaf(dtype: np.dtype[Any]) -> pa.DataType | None:
    """The Arrow type of text, and of lists of several lengths."""
    h5py = load_h5py()
    text = h5py.check_string_dtype(dtype)
    if text is not None:
        return pa.string() if text.encoding == "utf-8" else pa.binary()
    inner = h5py.check_vlen_dtype(dtype)
    if inner is not None:
        return pa.list_(array_type(np.dtype(inner), (), _check_is_number))
    if h5py.check_ref_dtype(dtype) is not None:
        raise ChoiceError("holds references, which are no values: leave it out with a dict of columns=")
    return None


def _check_is_number(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject or dtype.names:
        raise ChoiceError(
            "holds lists of other values than numbers, which cannot be read: leave it out with a dict of columns="
        )
