"""Formats of columns and tables: Arrow IPC, NumPy, Lance, Delta Lake and Iceberg."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench.formats.case import BATCH_ROWS, Case, convert_table, make_case

_FILES = 8
_COLUMNS = 16
_BATCH_ROWS = 2**16
_ROW_BYTES = 8 * 16


def make_table(rows: int, seed: int) -> pa.Table:
    bits = np.random.Generator(np.random.PCG64(seed))
    return pa.table({f"x{number}": bits.random(rows) for number in range(_COLUMNS)})


def _make_arrow(folder: Path, size_bytes: int, **options: Any) -> None:
    for part in range(_FILES):
        table = make_table(size_bytes // (8 * _COLUMNS * _FILES), part)
        written = pa.ipc.IpcWriteOptions(**options)
        with pa.ipc.new_file(str(folder / f"{part}.arrow"), table.schema, options=written) as writer:
            writer.write_table(table, max_chunksize=_BATCH_ROWS)


def _read_arrow(path: Path) -> int:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file, options=options).read_all()
    return convert_table(table)


def _map_arrow(path: Path) -> int:
    options = pa.ipc.IpcReadOptions(use_threads=False)
    rows = 0
    with pa.memory_map(str(path)) as file:
        stored = pa.ipc.open_file(file, options=options)
        for number in range(stored.num_record_batches):
            batch = stored.get_batch(number)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                some = batch.slice(start, BATCH_ROWS)
                owned = {name: some[name].to_numpy().copy() for name in some.schema.names}
                rows += len(next(iter(owned.values())))
    return rows


def _make_npy(folder: Path, size_bytes: int) -> None:
    for part in range(_FILES):
        rows = size_bytes // (4 * 256 * _FILES)
        bits = np.random.Generator(np.random.PCG64(part))
        np.save(folder / f"{part}.npy", bits.random((rows, 256), np.float32))


def _make_npz(folder: Path, size_bytes: int) -> None:
    for part in range(_FILES):
        rows = size_bytes // (8 * _COLUMNS * _FILES)
        columns = make_table(rows, part)
        np.savez(folder / f"{part}.npz", **{name: columns[name].to_numpy() for name in columns.column_names})


def _cut(stored: Any) -> list[Any]:
    return [stored[start : start + BATCH_ROWS] for start in range(0, len(stored), BATCH_ROWS)]


def _read_npy(path: Path) -> int:
    return sum(map(len, _cut(np.load(path))))


def _map_npy(path: Path) -> int:
    return sum(len(batch.copy()) for batch in _cut(np.load(path, mmap_mode="r")))


def _read_npz(path: Path) -> int:
    with np.load(path) as stored:
        columns = [_cut(stored[name]) for name in stored.files]
    return sum(map(len, columns[0]))


ARRAYS = (
    make_case("arrow", _make_arrow, _read_arrow, windrow.read_arrow, _map_arrow),
    make_case(
        "arrow-lz4", partial(_make_arrow, compression="lz4"), _read_arrow, windrow.read_arrow, _map_arrow
    ),
    make_case("npy", _make_npy, _read_npy, windrow.read_numpy, _map_npy),
    make_case("npz", _make_npz, _read_npz, windrow.read_numpy),
)


def _parts(size_bytes: int) -> list[Any]:
    return [make_table(size_bytes // (_ROW_BYTES * _FILES), part) for part in range(_FILES)]


def _make_lance(folder: Path, size_bytes: int) -> None:
    import lance

    for part in _parts(size_bytes):
        lance.write_dataset(
            part, folder / "table", mode="append" if (folder / "table").exists() else "create"
        )


def _read_lance(folder: Path) -> int:
    import lance

    return convert_table(lance.dataset(folder / "table").to_table())


def _make_delta(folder: Path, size_bytes: int) -> None:
    import deltalake

    for part in _parts(size_bytes):
        deltalake.write_deltalake(folder / "table", part, mode="append")


def _read_delta(folder: Path) -> int:
    import deltalake

    return convert_table(deltalake.DeltaTable(folder / "table").to_pyarrow_table())


def _make_iceberg(folder: Path, size_bytes: int) -> None:
    from pyiceberg.catalog import load_catalog

    parts = _parts(size_bytes)
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog("bench", type="sql", uri=uri, warehouse=f"file://{folder}/warehouse")
    try:
        catalog.create_namespace("bench")
        table = catalog.create_table("bench.table", schema=parts[0].schema)
        for part in parts:
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
