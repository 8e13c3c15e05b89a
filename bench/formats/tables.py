"""Formats of columns and tables: Arrow IPC, NumPy, Lance, Delta Lake and Iceberg."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench.formats.case import BATCH_ROWS, Case, convert_table, make_case

_FILES = 8
_COLUMNS = 16
_WIDTH = 256


def _make_tables(size_bytes: int) -> Iterator[pa.Table]:
    """Tables of doubles, one a file."""
    rows = size_bytes // (8 * _COLUMNS * _FILES)
    for part in range(_FILES):
        bits = np.random.default_rng(part)
        yield pa.table({f"x{number}": bits.random(rows) for number in range(_COLUMNS)})


def _make_arrow(folder: Path, size_bytes: int, **options: Any) -> None:
    written = pa.ipc.IpcWriteOptions(**options)
    for part, table in enumerate(_make_tables(size_bytes)):
        with pa.ipc.new_file(str(folder / f"{part}.arrow"), table.schema, options=written) as writer:
            writer.write_table(table, max_chunksize=2**16)


def _read_arrow(path: Path) -> int:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file, options=options).read_all()
    return convert_table(table)


def _make_npy(folder: Path, size_bytes: int) -> None:
    for part in range(_FILES):
        rows = size_bytes // (4 * _WIDTH * _FILES)
        np.save(folder / f"{part}.npy", np.random.default_rng(part).random((rows, _WIDTH), np.float32))


def _make_npz(folder: Path, size_bytes: int) -> None:
    for part, table in enumerate(_make_tables(size_bytes)):
        np.savez(folder / f"{part}.npz", **{name: table[name].to_numpy() for name in table.column_names})


def _cut(stored: Any) -> list[Any]:
    return [stored[start : start + BATCH_ROWS] for start in range(0, len(stored), BATCH_ROWS)]


def _read_npy(path: Path) -> int:
    return sum(map(len, _cut(np.load(path))))


def _read_npz(path: Path) -> int:
    with np.load(path) as stored:
        columns = [_cut(stored[name]) for name in stored.files]
    return sum(map(len, columns[0]))


ARRAYS = (
    make_case("arrow", _make_arrow, _read_arrow, windrow.read_arrow),
    make_case("arrow-lz4", partial(_make_arrow, compression="lz4"), _read_arrow, windrow.read_arrow),
    make_case("npy", _make_npy, _read_npy, windrow.read_numpy),
    make_case("npz", _make_npz, _read_npz, windrow.read_numpy),
)


def _make_lance(folder: Path, size_bytes: int) -> None:
    import lance

    for number, part in enumerate(_make_tables(size_bytes)):
        lance.write_dataset(part, folder / "table", mode="append" if number else "create")


def _read_lance(folder: Path) -> int:
    import lance

    return convert_table(lance.dataset(folder / "table").to_table())


def _make_delta(folder: Path, size_bytes: int) -> None:
    import deltalake

    for part in _make_tables(size_bytes):
        deltalake.write_deltalake(folder / "table", part, mode="append")


def _read_delta(folder: Path) -> int:
    import deltalake

    return convert_table(deltalake.DeltaTable(folder / "table").to_pyarrow_table())


def _make_iceberg(folder: Path, size_bytes: int) -> None:
    from pyiceberg.catalog import load_catalog

    first, *others = _make_tables(size_bytes)
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog("bench", type="sql", uri=uri, warehouse=f"file://{folder}/warehouse")
    try:
        catalog.create_namespace("bench")
        table = catalog.create_table("bench.table", schema=first.schema)
        for part in (first, *others):
            table.append(part)
        (folder / "location").write_text(table.metadata_location)
    finally:
        catalog.close()


def _read_iceberg(folder: Path) -> int:
    from pyiceberg.table import StaticTable

    return convert_table(StaticTable.from_metadata((folder / "location").read_text()).scan().to_arrow())


TABLES = (
    Case("lance", _make_lance, _read_lance, lambda folder: windrow.read_lance(str(folder / "table"))),
    Case("delta", _make_delta, _read_delta, lambda folder: windrow.read_delta(str(folder / "table"))),
    Case(
        "iceberg",
        _make_iceberg,
        _read_iceberg,
        lambda folder: windrow.read_iceberg((folder / "location").read_text()),
    ),
)
