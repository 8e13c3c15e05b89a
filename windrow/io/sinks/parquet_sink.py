"""Write Parquet files with Arrow."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.core.empty_tables import empty_table
from windrow.core.errors import PlanError
from windrow.core.variable_tensors import is_variable_tensor
from windrow.io.sinks.sink import check_compression, check_types, rows_within

__all__ = ["ParquetSink"]

# so that readers join one or several row groups to a block
_ROW_GROUP_BYTES = 64 * 2**20
_ROW_GROUP_ROWS = 2**20


@dataclass(frozen=True)
class ParquetSink:
    """Writes Parquet; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "Parquet"
    suffix: ClassVar[str] = ".parquet"

    compression: str | None = "snappy"

    def __post_init__(self) -> None:
        check_compression(self.compression, (None, "snappy", "gzip", "brotli", "zstd", "lz4"))

    def check(self, schema: pa.Schema) -> None:
        """Raise for types that Parquet cannot write or would not read back unchanged."""
        check_types(self.name, schema, _fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file, table by table, in row groups of bounded size."""
        writer: Any = None
        for table in tables:
            _check_lists(table)
            if writer is None:
                writer = pq.ParquetWriter(stream, table.schema, compression=self.compression or "none")
            rows = min(_ROW_GROUP_ROWS, rows_within(table, _ROW_GROUP_BYTES))
            writer.write_table(table, row_group_size=rows)
        writer.close()


def _check_lists(table: pa.Table) -> None:
    """Raise for nulls in lists of a fixed size, such as shapes of tensors, if pyarrow does not support them."""
    kinds = [field.type for field in table.schema]
    storage = [kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in kinds]
    for name, column, kind in zip(table.column_names, table.columns, storage, strict=True):
        has_sizes = pa.types.is_fixed_size_list(kind) or is_variable_tensor(column.type)
        if has_sizes and column.null_count and not _supports_null_lists():
            raise PlanError(
                f"column {name!r} has nulls in lists of a fixed size, which pyarrow {pa.__version__} does not "
                "store in Parquet: fill them, cast the column to pa.list_(), or install a newer pyarrow"
            )


@cache
def _supports_null_lists() -> bool:
    """Whether pyarrow reads back nulls in lists of a fixed size, found by trying; older versions do not."""
    table, file = pa.table({"x": pa.array([[0], None, [0]], pa.list_(pa.int8(), 1))}), io.BytesIO()
    try:
        pq.write_table(table, file)
        return bool(pq.read_table(file).equals(table))
    except pa.ArrowException:
        return False


def _fix(kind: pa.DataType) -> str | None:
    """How to fix a type; found by writing and reading it back, since support depends on Arrow's version."""
    schema, file = pa.schema([("column", kind)]), io.BytesIO()
    try:
        with pq.ParquetWriter(file, schema) as writer:
            writer.write_table(empty_table(schema))
        found = pq.read_schema(io.BytesIO(file.getvalue())).field(0).type
    # Parquet raises some errors, such as that of a negative scale, as plain OSError
    except (pa.ArrowException, OSError) as error:
        return f"{str(error).rstrip('.')}; cast it to another type or exclude it"
    return (
        None if _holds(found, kind) else f"it would be read back as {found}; cast it to that, or another type"
    )


def _holds(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether the type read back holds the same values: in finer units, with wider indices, or without a dictionary."""
    if pa.types.is_dictionary(kind):
        if pa.types.is_dictionary(found):
            return bool(found.value_type == kind.value_type and found.ordered == kind.ordered)
        kind = kind.value_type
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(found):
        return kind == found or (kind.unit == "s" and kind.tz == found.tz)
    pairs = (pa.types.is_time32, pa.types.is_date)
    return found == kind or any(test(kind) and test(found) for test in pairs)
