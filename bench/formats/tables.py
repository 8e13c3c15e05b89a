"""Table formats: Lance, Delta Lake and Iceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import windrow
from bench.formats.arrays import make_table
from bench.formats.case import BATCH_ROWS, Case

_FILES = 8
_ROW_BYTES = 8 * 16


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

    return _count(lance.dataset(folder / "table").to_table())


def _make_delta(folder: Path, size_bytes: int) -> None:
    import deltalake

    for part in _parts(size_bytes):
        deltalake.write_deltalake(folder / "table", part, mode="append")


def _read_delta(folder: Path) -> int:
    import deltalake

    return _count(deltalake.DeltaTable(folder / "table").to_pyarrow_table())


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

    return _count(StaticTable.from_metadata((folder / "location").read_text()).scan().to_arrow())


def _count(table: Any) -> int:
    """Convert a table to NumPy arrays batch by batch; returns its rows."""
    return sum(
        max(len(batch[name].to_numpy()) for name in batch.schema.names)
        for batch in table.to_batches(BATCH_ROWS)
    )


TABLES = (
    Case(
        "lance",
        _make_lance,
        _read_lance,
        lambda folder: windrow.read_lance(str(folder / "table")),
    ),
    Case(
        "delta",
        _make_delta,
        _read_delta,
        lambda folder: windrow.read_delta(str(folder / "table")),
    ),
    Case(
        "iceberg",
        _make_iceberg,
        _read_iceberg,
        lambda folder: windrow.read_iceberg((folder / "location").read_text()),
    ),
)
