"""Read the positions of deleted rows from Iceberg's delete files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.io.storage.credentials import without_user

__all__ = ["read_positions"]

Ints = NDArray[np.int64]


def read_positions(io: Any, tasks: Iterable[Any]) -> dict[str, Ints]:
    """The positions of deleted rows by data file, ascending; each delete file is read once."""
    known: dict[str, dict[str, list[Ints]]] = {}
    deleted = {}
    for task in tasks:
        for delete in task.delete_files:
            if delete.file_path not in known:
                known[delete.file_path] = _read(io, delete)
        # a delete file that names a data file applies only if planning assigned it: the data file can be newer
        path = task.file.file_path
        found = [
            positions for delete in task.delete_files for positions in known[delete.file_path].get(path, ())
        ]
        if found:
            deleted[path] = np.unique(np.concatenate(found))
    return deleted


def _read(io: Any, delete: Any) -> dict[str, list[Ints]]:
    form = str(getattr(delete.file_format, "value", delete.file_format)).upper()
    with io.new_input(delete.file_path).open() as file:
        if form == "PARQUET":
            return _read_parquet(file)
        if form == "PUFFIN":
            return _read_puffin(bytes(file.read()))
    raise SourceError(
        f"the delete file {without_user(delete.file_path)} is {form}, which is not supported: compact the table"
    )


def _read_parquet(file: Any) -> dict[str, list[Ints]]:
    import pyarrow.parquet as pq

    table = pq.read_table(file, columns=["file_path", "pos"])
    paths = table["file_path"].combine_chunks().dictionary_encode()
    codes, positions = paths.indices.to_numpy(), table["pos"].to_numpy()
    return {path: [positions[codes == code]] for code, path in enumerate(paths.dictionary.to_pylist())}


def _read_puffin(content: bytes) -> dict[str, list[Ints]]:
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    found: dict[str, list[Ints]] = {}
    for vector in deletion_vectors_from_puffin_file(PuffinFile(content)):
        positions: Sequence[int] = vector.to_vector().to_pylist()
        found.setdefault(vector.referenced_data_file, []).append(np.array(positions, np.int64))
    return found
