"""The interface of output formats, and what they share: checks of types, compression, batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Protocol

import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.errors import PlanError

# the suffix of each, for formats without compression of their own
FILE_COMPRESSIONS = {None: "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


class Sink(Protocol):
    """How to write files of one format: a frozen, picklable value with the user's options."""

    @property
    def name(self) -> str:
        """The format's name in messages: ``"Parquet"``."""

    @property
    def suffix(self) -> str:
        """The end of a file's name: ``".csv.gz"``."""

    def check(self, schema: pa.Schema) -> None:
        """Raise a PlanError, before anything is written, that names columns to change or the extra to install."""

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file; raise a PlanError that names the column if a value cannot be stored.

        There are one or more tables, of one schema that `check` has accepted; they can be empty. The
        stream accepts sequential writes only, and the sink can close it. The label identifies the
        file within its write job, and is the same when the file is written again.
        """


@dataclass(frozen=True)
class CompressedSink:
    """What sinks share whose files are compressed as a whole: the names of files state how."""

    extension: ClassVar[str]
    compressions: ClassVar[Collection[str | None]] = FILE_COMPRESSIONS

    compression: str | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression, self.compressions)

    @property
    def suffix(self) -> str:
        return f"{self.extension}{FILE_COMPRESSIONS[self.compression]}"


def check_types(name: str, schema: pa.Schema, fix: Callable[[pa.DataType], str | None]) -> None:
    """Raise a PlanError that names every column for whose type ``fix`` returns a fix instead of None."""
    checked = [(field, fix(field.type)) for field in schema]
    named = [f"column {field.name!r} is {field.type}: {advice}" for field, advice in checked if advice]
    if named:
        raise PlanError(f"{name} cannot carry every column: {'; '.join(named)}")


def check_compression(compression: str | None, known: Collection[str | None]) -> None:
    """Raise a PlanError if a format does not know a compression."""
    if compression not in known:
        raise PlanError(f"compression={compression!r} must be one of {tuple(known)}")


@contextmanager
def compressed(stream: BinaryIO, compression: str | None) -> Iterator[Any]:
    """A stream that compresses into another one; the latter stays open."""
    if compression is None:
        yield stream
        return
    with pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), compression) as inner:
        yield inner


def rows_within(table: pa.Table, max_bytes: int) -> int:
    """Return how many rows of a table take at most ``max_bytes``, by their mean size; at least one."""
    row_bytes = max(1, arrow_bytes(table) // max(1, table.num_rows))
    return max(1, max_bytes // row_bytes)
