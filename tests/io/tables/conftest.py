"""A table of each kind, written by its own library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow


@dataclass(frozen=True)
class Kind:
    """A kind of table: functions that append, delete and read, and the version after a number of appends."""

    name: str
    data: Path
    append: Callable[[pa.Table], None]
    delete: Callable[[str], None]
    read: Callable[..., windrow.Dataset]
    version: Callable[[int], dict[str, Any]]


@pytest.fixture(params=["delta", "iceberg", "lance"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.getfixturevalue(f"{request.param}_kind")


@pytest.fixture
def delta_kind(tmp_path: Path) -> Kind:
    deltalake = pytest.importorskip("deltalake")
    path = tmp_path / "delta"

    def append(table: pa.Table) -> None:
        deltalake.write_deltalake(path, table, mode="append", schema_mode="merge")

    return Kind(
        "delta",
        path,
        append,
        lambda where: deltalake.DeltaTable(path).delete(where),
        lambda **options: windrow.read_delta(path, **options),
        lambda appends: {"version": appends - 1},
    )


@pytest.fixture
def lance_kind(tmp_path: Path) -> Kind:
    lance = pytest.importorskip("lance")
    path = tmp_path / "table.lance"

    def append(table: pa.Table) -> None:
        lance.write_dataset(table, str(path), mode="append" if path.exists() else "create")

    return Kind(
        "lance",
        path / "data",
        append,
        lambda where: lance.dataset(str(path)).delete(where),
        lambda **options: windrow.read_lance(path, **options),
        lambda appends: {"version": appends},
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog import load_catalog

    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    opened = load_catalog("test", type="sql", uri=uri, warehouse=warehouse)
    opened.create_namespace("db")
    yield opened
    opened.close()


@pytest.fixture
def iceberg_kind(tmp_path: Path, catalog: Any) -> Kind:
    def append(table: pa.Table) -> None:
        if catalog.table_exists("db.t"):
            known = catalog.load_table("db.t")
            with known.update_schema() as update:
                update.union_by_name(table.schema)
        else:
            catalog.create_table("db.t", schema=table.schema)
        catalog.load_table("db.t").append(table)

    def version(appends: int) -> dict[str, Any]:
        return {"snapshot_id": catalog.load_table("db.t").snapshots()[appends - 1].snapshot_id}

    return Kind(
        "iceberg",
        tmp_path / "warehouse" / "db" / "t" / "data",
        append,
        lambda where: catalog.load_table("db.t").delete(where),
        lambda **options: windrow.read_iceberg("db.t", catalog=catalog, **options),
        version,
    )
