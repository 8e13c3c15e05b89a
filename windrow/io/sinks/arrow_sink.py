"""Write Arrow IPC files, also known as Feather."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.io.sinks.sink import check_types

__all__ = ["IpcSink"]

_COMPRESSIONS = (None, "lz4", "zstd")
_BATCH_BYTES = 64 * 2**20


@dataclass(frozen=True)
class IpcSink:
    """Writes Arrow IPC files; see ``windrow.io.sinks.sink.Sink``.

    Attributes
    ----------
    compression
        ``"lz4"``, ``"zstd"`` or None.
    """

    compression: str | None = None

    def __post_init__(self) -> None:
        if self.compression not in _COMPRESSIONS:
            raise PlanError(f"compression={self.compression!r} must be one of {_COMPRESSIONS}")

    @property
    def name(self) -> str:
        """``"Arrow IPC"``."""
        return "Arrow IPC"

    @property
    def suffix(self) -> str:
        """``".arrow"``."""
        return ".arrow"

    def check(self, schema: pa.Schema) -> None:
        """Raise for types that Arrow IPC cannot write."""
        check_types(self.name, schema, _fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file in batches of bounded size."""
        # an IPC file has one dictionary per column, shared by all its batches
        table = pa.concat_tables(list(tables)).unify_dictionaries()
        row_bytes = max(1, table.nbytes // max(1, table.num_rows))
        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        with pa.ipc.new_file(stream, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=max(1, _BATCH_BYTES // row_bytes))


def _fix(kind: pa.DataType) -> str | None:
    schema, file = pa.schema([("column", kind)]), io.BytesIO()
    try:
        pa.ipc.new_file(file, schema).close()
        found: Any = pa.ipc.open_file(io.BytesIO(file.getvalue())).schema.field(0).type
    except pa.ArrowException as error:
        return f"{str(error).rstrip('.')}; cast it to another type or exclude it"
    return None if found == kind else f"it would be read back as {found}; cast it to that, or another type"
