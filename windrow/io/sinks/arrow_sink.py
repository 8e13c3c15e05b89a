"""Write Arrow IPC files, also known as Feather."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa

from windrow.io.sinks.sink import check_compression, check_types, rows_within

__all__ = ["IpcSink"]

_BATCH_BYTES = 64 * 2**20


@dataclass(frozen=True)
class IpcSink:
    """Writes Arrow IPC files; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "Arrow IPC"
    suffix: ClassVar[str] = ".arrow"

    compression: str | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression, (None, "lz4", "zstd"))

    def check(self, schema: pa.Schema) -> None:
        """Raise for types that Arrow IPC cannot write."""
        check_types(self.name, schema, _fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file in batches of bounded size."""
        # an IPC file has one dictionary per column, shared by all its batches
        table = pa.concat_tables(list(tables)).unify_dictionaries()
        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        with pa.ipc.new_file(stream, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows_within(table, _BATCH_BYTES))


def _fix(kind: pa.DataType) -> str | None:
    schema, file = pa.schema([("column", kind)]), io.BytesIO()
    try:
        pa.ipc.new_file(file, schema).close()
        found: Any = pa.ipc.open_file(io.BytesIO(file.getvalue())).schema.field(0).type
    except pa.ArrowException as error:
        return f"{str(error).rstrip('.')}; cast it to another type or exclude it"
    return None if found == kind else f"it would be read back as {found}; cast it to that, or another type"
