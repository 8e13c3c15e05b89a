"""read_delta, read_iceberg and read_lance: snapshots of tables as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.byte_sizes import parse_bytes
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.tables.delta_table import DeltaVersion, open_delta
from windrow.io.tables.iceberg_table import IcebergVersion, open_iceberg
from windrow.io.tables.lance_table import LanceVersion, open_lance

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["read_delta", "read_iceberg", "read_lance"]


def read_delta(
    table: Any,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    version: DeltaVersion | None = None,
    storage_options: Mapping[str, str] | None = None,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Describe a version of a Delta Lake table as a dataset: reads its log and the footers of its files.

    The version is fixed by this call: what is committed later changes nothing. Files come in
    the order of their names. Partition columns have the types and places that the table gives
    them, columns that a file lacks are null, and rows that deletion vectors delete are left out.
    A saved state fits this version of this table, and no other.

    Parameters
    ----------
    table
        The table's path or URL, or a ``deltalake.DeltaTable``, at the version it is at.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression: only rows for which it is true are delivered. Files that cannot
        hold any, by partition values and statistics in the log, are not even looked at.
    version
        A version's number, or the last one at a time: a ``datetime`` with a time zone, or text such
        as ``"2026-01-31T12:00:00Z"``. None: the last one now.
    storage_options
        What ``deltalake`` needs to open the URL; files are read by the same.
    target_block_bytes
        Adjacent row groups of a file are read together up to this many encoded bytes:
        an integer, or a string with a unit.

    Raises
    ------
    SourceError
        If there is no such table or version, a file is gone (vacuumed) or does not fit the table, or the
        table needs of its readers what windrow does not know.
    PlanError
        If deltalake is not installed, an argument is wrong, or ``columns`` or ``filter`` name a column
        that is not there.

    Examples
    --------
    >>> import deltalake, pyarrow as pa, windrow
    >>> deltalake.write_deltalake("trips", pa.table({"fare": [5.0, 7.5]}))
    >>> deltalake.write_deltalake("trips", pa.table({"fare": [9.0]}), mode="append")
    >>> windrow.read_delta("trips").count(), windrow.read_delta("trips", version=0).count()
    (3, 2)
    """
    source = open_delta(
        table,
        columns=columns,
        filter=filter,
        version=version,
        storage_options=storage_options,
        target_block_bytes=parse_bytes(target_block_bytes, "target_block_bytes"),
    )
    return Dataset(LogicalPlan(source))


def read_iceberg(
    table: Any,
    *,
    catalog: Any = None,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    snapshot_id: IcebergVersion | None = None,
    storage_options: Mapping[str, str] | None = None,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Describe a snapshot of an Iceberg table as a dataset: reads its metadata and the footers of its files.

    The snapshot is fixed by this call: what is committed later changes nothing. Files come in
    the order of their names. Columns are found by their field ids, so that renamed ones are
    found; those that a file lacks have the table's default, else null. Rows that position deletes
    or deletion vectors delete are left out; equality deletes are refused. A saved state fits
    this snapshot of this table, and no other.

    Parameters
    ----------
    table
        The table's name in a catalog (``"db.trips"``), the path of a metadata file or of a table's directory
        that has a version hint, or a ``pyiceberg.table.Table``.
    catalog
        A catalog's name in pyiceberg's configuration, its properties, or a
        ``pyiceberg.catalog.Catalog``.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression: only rows for which it is true are delivered. Files that cannot
        hold any, by the bounds in the manifests, are not even looked at.
    snapshot_id
        A snapshot's id, the name of a tag or branch, or a ``datetime`` with a time zone: the last
        one then. None: the last one now.
    storage_options
        Properties that pyiceberg needs to open the files, such as ``s3.endpoint``.
    target_block_bytes
        Adjacent row groups of a file are read together up to this many encoded bytes:
        an integer, or a string with a unit.

    Raises
    ------
    SourceError
        If there is no such table or snapshot, a file is gone (expired) or does not fit the table, or there
        are equality deletes, or files that are no Parquet.
    PlanError
        If pyiceberg is not installed, an argument is wrong, or ``columns`` or ``filter`` name a column
        that is not there.

    Examples
    --------
    >>> import os, pyarrow as pa, windrow
    >>> from pyiceberg.catalog import load_catalog
    >>> where = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": f"file://{os.getcwd()}"}
    >>> catalog = load_catalog("here", **where)
    >>> catalog.create_namespace("db")
    >>> trips = pa.table({"fare": [5.0, 7.5]})
    >>> catalog.create_table("db.trips", schema=trips.schema).append(trips)
    >>> windrow.read_iceberg("db.trips", catalog=catalog).take()
    [{'fare': 5.0}, {'fare': 7.5}]
    >>> catalog.close()
    """
    source = open_iceberg(
        table,
        catalog=catalog,
        columns=columns,
        filter=filter,
        snapshot_id=snapshot_id,
        storage_options=storage_options,
        target_block_bytes=parse_bytes(target_block_bytes, "target_block_bytes"),
    )
    return Dataset(LogicalPlan(source))


def read_lance(
    uri: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    version: LanceVersion | None = None,
    storage_options: Mapping[str, str] | None = None,
    target_block_bytes: int | str = "64MiB",
) -> Dataset:
    """Describe a version of a Lance table as a dataset: reads its manifest and a few rows, nothing else.

    The version is fixed by this call: what is committed later changes nothing. Deleted rows are
    left out, columns that a fragment lacks are null, and blobs are read as bytes. Blocks are ranges of
    rows of a fragment, as long as the rows' mean width in a small sample makes them. A saved
    state fits this version of this table, and no other.

    Parameters
    ----------
    uri
        The table's path or URL.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression: only rows for which it is true are delivered. Where a block has none,
        only the columns that the filter needs are read.
    version
        A version's number, the name of a tag, or a ``datetime`` with a time zone: the last one
        then. None: the last one now.
    storage_options
        What Lance needs to open the URL.
    target_block_bytes
        Rows of a fragment are read together up to about this many bytes in memory:
        an integer, or a string with a unit.

    Raises
    ------
    SourceError
        If there is no such table or version.
    PlanError
        If pylance is not installed, an argument is wrong, or ``columns`` or ``filter`` name a column
        that is not there.

    Examples
    --------
    >>> import lance, pyarrow as pa, windrow
    >>> table = lance.write_dataset(pa.table({"fare": [5.0, 7.5]}), "trips.lance")
    >>> table = lance.write_dataset(pa.table({"fare": [9.0]}), "trips.lance", mode="append")
    >>> windrow.read_lance("trips.lance").count(), windrow.read_lance("trips.lance", version=1).count()
    (3, 2)
    """
    source = open_lance(
        uri,
        columns=columns,
        filter=filter,
        version=version,
        storage_options=storage_options,
        target_block_bytes=parse_bytes(target_block_bytes, "target_block_bytes"),
    )
    return Dataset(LogicalPlan(source))
