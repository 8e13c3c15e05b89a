"""read_delta, read_iceberg and read_lance: snapshots of table formats as a Dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windrow.core.byte_sizes import parse_bytes
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.file_arguments import parse_block_bytes
from windrow.io.tables.delta_table import DeltaVersion, open_delta
from windrow.io.tables.iceberg_table import IcebergVersion, open_iceberg
from windrow.io.tables.lance_table import LanceVersion, open_lance

if TYPE_CHECKING:
    import pyarrow.compute as pc


def read_delta(
    table: Any,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    version: DeltaVersion | None = None,
    storage_options: Mapping[str, str] | None = None,
    target_block_bytes: int | str = "auto",
) -> Dataset:
    """Return a dataset of one version of a Delta Lake table; reads its log and the footers of its files.

    This call fixes the version: later commits do not affect the dataset. Files are ordered by name.
    Partition columns have the types and positions of the table's schema, columns that a file lacks
    are null, and rows deleted by deletion vectors are omitted. A checkpoint only fits the same
    version of the same table.

    Parameters
    ----------
    table
        The table's path or URL, or a ``deltalake.DeltaTable``, which is read at its current version.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression; only rows for which it is true are delivered. Files without matching
        rows, according to partition values and statistics in the log, are not opened.
    version
        A version number, or a point in time whose latest version is read: a ``datetime`` with a time
        zone, or text such as ``"2026-01-31T12:00:00Z"``. None: the latest version now.
    storage_options
        Options of ``deltalake`` to open the URL, used for the log and the files.
    target_block_bytes
        Encoded bytes up to which adjacent row groups, also of adjacent files, are joined to a block; as in
        `read_parquet`.

    Raises
    ------
    SourceError
        If the table or version does not exist, a file was deleted (vacuumed) or does not fit the table,
        or the table needs reader features that windrow does not support.
    PlanError
        If deltalake is not installed, an argument is invalid, or ``columns`` or ``filter`` name a column
        that does not exist.

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
        target_block_bytes=parse_block_bytes(target_block_bytes),
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
    target_block_bytes: int | str = "auto",
) -> Dataset:
    """Return a dataset of one snapshot of an Iceberg table; reads its metadata and the footers of its files.

    This call fixes the snapshot: later commits do not affect the dataset. Files are ordered by name.
    Columns are matched by field id, so renames are resolved; a column that a file lacks has the
    table's default value, else null. Rows deleted by position deletes or deletion vectors are
    omitted; equality deletes raise an error. A checkpoint only fits the same snapshot of the same
    table.

    Parameters
    ----------
    table
        The table's name in a catalog (``"db.trips"``), the path of a metadata file or of a table
        directory with a version hint, or a ``pyiceberg.table.Table``.
    catalog
        The name of a catalog in pyiceberg's configuration, a catalog's properties, or a
        ``pyiceberg.catalog.Catalog``.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression; only rows for which it is true are delivered. Files without matching
        rows, according to the column bounds in the manifests, are not opened.
    snapshot_id
        A snapshot id, the name of a tag or branch, or a ``datetime`` with a time zone whose latest
        snapshot is read. None: the latest snapshot now.
    storage_options
        Properties of pyiceberg to open the files, such as ``s3.endpoint``.
    target_block_bytes
        Encoded bytes up to which adjacent row groups, also of adjacent files, are joined to a block; as in
        `read_parquet`.

    Raises
    ------
    SourceError
        If the table or snapshot does not exist, a file was deleted (expired) or does not fit the table, or
        there are equality deletes or files that are not Parquet.
    PlanError
        If pyiceberg is not installed, an argument is invalid, or ``columns`` or ``filter`` name a column
        that does not exist.

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
        target_block_bytes=parse_block_bytes(target_block_bytes),
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
    """Return a dataset of one version of a Lance table; reads its manifest and a few rows.

    This call fixes the version: later commits do not affect the dataset. Deleted rows are omitted,
    columns that a fragment lacks are null, and blobs are read as bytes. Blocks are ranges of rows of
    a fragment; their length follows from the mean row width in a small sample. A checkpoint only
    fits the same version of the same table.

    Parameters
    ----------
    uri
        The table's path or URL.
    columns
        The columns to read, in this order; None: all.
    filter
        A pyarrow expression; only rows for which it is true are delivered. In blocks without matching
        rows, only the columns of the filter are read.
    version
        A version number, the name of a tag, or a ``datetime`` with a time zone whose latest version is
        read. None: the latest version now.
    storage_options
        Options of Lance to open the URL.
    target_block_bytes
        Approximate in-memory bytes of a block, which is a range of rows of a fragment:
        an integer, or a string with a unit.

    Raises
    ------
    SourceError
        If the table or version does not exist.
    PlanError
        If pylance is not installed, an argument is invalid, or ``columns`` or ``filter`` name a column
        that does not exist.

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
