"""Helpers that write and read files, and the address of an S3 server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from windrow.io.catalog.blocks import CutSizes
from windrow.io.catalog.file_source import FileSource, open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.storage.filesystems import Paths


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def open_parquet(paths: Paths | None, **options: Any) -> FileSource:
    """Open Parquet files as `windrow.read_parquet` does, but return the source of its dataset."""
    return open_files(paths, ParquetFormat(), **options)


def read_all(source: FileSource) -> pa.Table:
    """Read every block in stored order, and check that each has exactly the source's schema."""
    tables = []
    for address in source.addresses(range(len(source.blocks.rows))):
        table = source.reader.read(address)
        table.validate(full=True)
        assert table.schema.equals(source.schema, check_metadata=True)
        tables.append(table)
    return pa.concat_tables(tables) if tables else source.schema.empty_table()


@dataclass(frozen=True)
class S3:
    """A server on the loopback, and the directory whose subdirectories are its buckets."""

    endpoint: str
    directory: Path

    key = "key-that-nobody-shows"
    secret = "secret-that-nobody-shows"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "secret": self.secret,
            "client_kwargs": {"endpoint_url": self.endpoint, "region_name": "us-east-1"},
        }


def arrow_s3(endpoint: str, secret: str = S3.secret) -> pa_fs.S3FileSystem:
    """Arrow's own client of a server on the loopback."""
    return pa_fs.S3FileSystem(
        access_key=S3.key,
        secret_key=secret,
        endpoint_override=endpoint.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )


def make_bucket(endpoint: str, name: str) -> pa_fs.S3FileSystem:
    """Create a bucket, and return the client that did."""
    filesystem = arrow_s3(endpoint)
    filesystem.create_dir(name)
    return filesystem


def cut_source(source: FileSource, rows: int) -> FileSource:
    """A source whose row groups are cut into pieces of about so many rows."""
    size = int(source.manifest.encoded_bytes.max(initial=1))
    most = int(source.manifest.rows.max(initial=1))
    sizes = CutSizes(
        min_bytes=1,
        max_bytes=1,
        min_piece_bytes=max(1, size * rows // max(most, 1)),
        page_rows=1,
        batch_rows=1,
    )
    return replace(source, target_block_bytes=1, format=ParquetFormat(cut_sizes=sizes))
