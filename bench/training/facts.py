"""Facts about the files, read once with pyarrow; the results of every system are checked against them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.training.delivered_rows import Sums, add_sums, sum_column
from bench.training.model import CATEGORIES


@dataclass(frozen=True, eq=False)
class Facts:
    """Rows, bytes and sums of the chosen columns of some Parquet files.

    ``key`` is the key column if it contains 0 .. rows - 1 once each, or None.
    ``sums`` has every integer column without nulls; those with values in [0, 64) are ``categories``.
    """

    rows: int
    decoded_bytes: int
    row_groups: int
    schema: pa.Schema
    key: str | None
    sums: Sums
    categories: tuple[str, ...]

    @property
    def tensor_columns(self) -> tuple[str, ...]:
        """The columns that become tensors."""
        return tuple(field.name for field in self.schema if _fits_tensor(field.type))

    @property
    def delivered_columns(self) -> tuple[str, ...]:
        """The columns that become tensors, or all columns if none does."""
        return self.tensor_columns or tuple(self.schema.names)

    @property
    def list_columns(self) -> tuple[str, ...]:
        """The columns that hold lists."""
        return tuple(
            field.name
            for field in self.schema
            if pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        )


def read_facts(paths: Sequence[str], columns: Sequence[str] | None, key: str | None, threads: int) -> Facts:
    """Read every row group of some files once.

    Raises
    ------
    ValueError
        If the files contain no rows, or a chosen column does not exist.
    """
    schema = _choose_columns(pq.read_schema(paths[0]), paths[0], columns)
    counted = key if key in schema.names and pa.types.is_integer(schema.field(key).type) else None
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(lambda path: _read_file(path, schema.names, integers, counted), paths))
    rows = sum(part.rows for part in parts)
    if rows == 0:
        raise ValueError(f"{paths[0]} and the other {len(paths) - 1} files contain no rows to measure")
    sums = _add_files([part.sums for part in parts])
    return Facts(
        rows,
        sum(part.decoded_bytes for part in parts),
        sum(part.row_groups for part in parts),
        schema,
        counted if counted in sums and _is_dense([part.keys for part in parts], rows) else None,
        sums,
        tuple(name for name in sums if all(name in part.small for part in parts)),
    )


@dataclass(frozen=True, eq=False)
class _FileFacts:
    rows: int
    decoded_bytes: int
    row_groups: int
    sums: Sums
    keys: NDArray[np.int64]
    small: frozenset[str]


def measure_decoded(table: pa.Table) -> int:
    """Bytes of the values; validity bitmaps are excluded if there are no nulls."""
    return sum(_measure_column(table.column(name)) for name in table.column_names)


def _measure_column(column: pa.ChunkedArray) -> int:
    try:
        return len(column) * int(column.type.bit_width) // 8
    except ValueError:  # of variable width
        bitmaps = sum(-(-len(chunk) // 8) for chunk in column.chunks if chunk.buffers()[0] is not None)
        return int(column.nbytes) - (bitmaps if column.null_count == 0 else 0)


def _choose_columns(schema: pa.Schema, path: str, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise ValueError(f"{path} has no column {name!r}; it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in columns])


def _read_file(path: str, columns: Sequence[str], integers: Sequence[str], key: str | None) -> _FileFacts:
    rows = decoded_bytes = 0
    sums: dict[str, tuple[int, int, int]] = dict.fromkeys(integers, (0, 0, 0))
    keys = [np.empty(0, dtype=np.int64)]
    small = frozenset(integers)
    with pq.ParquetFile(path, memory_map=True) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, columns=list(columns), use_threads=False)
            rows, decoded_bytes = rows + table.num_rows, decoded_bytes + measure_decoded(table)
            sums = {
                name: add_sums(sums[name], sum_column(table[name].to_numpy()))
                for name in sums
                if table[name].null_count == 0
            }
            small = frozenset(name for name in small if _is_small(table[name]))
            if key in sums:
                keys.append(table[key].to_numpy().astype(np.int64))
        return _FileFacts(rows, decoded_bytes, file.num_row_groups, sums, np.concatenate(keys), small)


def _is_small(column: pa.ChunkedArray) -> bool:
    if column.null_count or not len(column):
        return not column.null_count
    values = column.to_numpy()
    return bool(values.min() >= 0 and values.max() < CATEGORIES)


def _add_files(files: Sequence[Sums]) -> Sums:
    """Sums over all files, of the columns without nulls in any of them."""
    total = dict(files[0])
    for sums in files[1:]:
        total = {name: add_sums(total[name], sums[name]) for name in total if name in sums}
    return total


def _is_dense(parts: list[NDArray[np.int64]], rows: int) -> bool:
    keys = np.concatenate(parts)
    if len(keys) != rows or keys.min() < 0 or keys.max() >= rows:
        return False
    return bool((np.bincount(keys, minlength=rows) == 1).all())


def _fits_tensor(kind: pa.DataType) -> bool:
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(number or pa.types.is_timestamp(kind))
