"""The pieces of partitions between the two phases of an exchange: how they are serialized, and files of them.

A task's output is an Arrow IPC file with one record batch for each partition that has rows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import SourceError, TransformError
from windrow.core.offsets import check_layout
from windrow.io.adapters.temporary_folder import LeasedFolder
from windrow.pipeline.exchange.operations import Divided


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of one partition: the locator of a block."""

    partition: int
    # reads them, in the order of the tasks; its argument names the block in errors
    read: Callable[[str], list[pa.Table]]


class Spilled(Protocol):
    """The output of all tasks."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """(tasks, partitions) rows of every piece."""

    def pieces(self, partition: int) -> Pieces:
        """The pieces of a partition."""

    @property
    def is_portable(self) -> bool:
        """Whether it can be pickled for any process, rather than for one of the same Ray session."""


def write_pieces(sink: Any, divided: Divided, first: int, stop: int) -> None:
    """Write the pieces of partitions ``first`` to ``stop`` to an Arrow file; empty ones are left out."""
    table, cuts = divided.table, divided.cuts
    with pa.ipc.new_file(sink, table.schema) as writer:
        for partition in range(first, stop):
            piece = table.slice(cuts[partition], cuts[partition + 1] - cuts[partition])
            batches = piece.combine_chunks().to_batches() if piece.num_rows else []
            if len(batches) > 1:
                raise TransformError(
                    f"a partition's {piece.num_rows:,} rows of one task are too large for one Arrow array: cast "
                    "text to large_string and bytes to large_binary with map_batches()"
                )
            for batch in batches:
                writer.write_batch(batch)


def read_piece(source: Any, rows: NDArray[np.int64], place: int) -> pa.Table:
    """Read one piece of an Arrow file, given the rows of all pieces that were written to it."""
    with pa.ipc.open_file(source) as reader:
        number = int(np.count_nonzero(rows[:place]))
        return pa.Table.from_batches([reader.get_batch(number)])


@dataclass(frozen=True, eq=False)
class FileSpill:
    """Pieces in files of a temporary folder, one for each task; they last as long as this value or a pickle of it."""

    # a `LeasedFolder` or, in another process, what it was pickled as
    folder: Any
    rows: NDArray[np.int64]
    is_portable = True

    def pieces(self, partition: int) -> Pieces:
        tasks = np.flatnonzero(self.rows[:, partition])
        places = [int(np.count_nonzero(self.rows[task, :partition])) for task in tasks]
        read = partial(_read_files, self.folder, tuple(zip(tasks.tolist(), places, strict=True)))
        return Pieces(partition, read)


def _read_files(folder: Any, places: Sequence[tuple[int, int]], origin: str) -> list[pa.Table]:
    """Read pieces, given the task and the number of the record batch in its file of each."""
    tables = []
    for task, batch in places:
        path = _file_of(folder.path, task)
        try:
            # a read, not a map: others can truncate the file, and the memory is this process's own
            with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
                table = pa.Table.from_batches([reader.get_batch(batch)])
            check_layout(table)
        except (OSError, pa.ArrowInvalid) as error:
            raise SourceError(
                f"{origin}: its rows in {path} cannot be read ({error}). Spilled rows last as long as the "
                "process that made the dataset; other machines need options(executor='ray') there"
            ) from error
        tables.append(table)
    return tables


def _file_of(folder: str, task: int) -> str:
    return str(Path(folder, f"task-{task:06d}.arrow"))


def make_folder(parent: str | os.PathLike[str] | None, call: str) -> LeasedFolder:
    """Make the folder for an exchange's files, in the system's temporary folder by default."""
    try:
        return LeasedFolder(parent)
    except OSError as error:
        raise SourceError(
            f"{call}: rows cannot be spilled to {os.fspath(parent or tempfile.gettempdir())!r} ({error}); set "
            "the environment variable TMPDIR to a writable folder"
        ) from error


def spill_to_file(divided: Divided, folder: str, task: int, call: str) -> NDArray[np.int64]:
    """Write a task's pieces to its file; returns (partitions,) their rows."""
    path = _file_of(folder, task)
    try:
        with pa.OSFile(path, "wb") as sink:
            write_pieces(sink, divided, 0, len(divided.cuts) - 1)
    except OSError as error:
        raise SourceError(
            f"{call}: rows cannot be spilled to {path} ({error}); set the environment variable TMPDIR to a "
            "folder with enough space"
        ) from error
    return np.diff(divided.cuts)


def stack_rows(rows: Sequence[NDArray[np.int64]], partitions: int) -> NDArray[np.int64]:
    """(tasks, partitions) rows of all pieces."""
    return np.array(rows, np.int64).reshape(len(rows), partitions)
