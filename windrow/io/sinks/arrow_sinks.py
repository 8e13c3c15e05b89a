"""Write files with Arrow's writers: Parquet, Arrow IPC (also known as Feather) and CSV.

CSV has a header, one line per row, and an empty field for null. Text is quoted, which distinguishes the empty string
from null.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from windrow.core.arrow_support import empty_table
from windrow.core.errors import PlanError
from windrow.core.variable_tensors import is_variable_tensor
from windrow.io.sinks.sink import CompressedSink, check_compression, check_types, compressed, rows_within

# so that readers join one or several row groups to a block
_ROW_GROUP_BYTES = 64 * 2**20
_ROW_GROUP_ROWS = 2**20
_BATCH_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ParquetSink:
    """Writes Parquet; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "Parquet"
    suffix: ClassVar[str] = ".parquet"

    compression: str | None = "snappy"

    def __post_init__(self) -> None:
        check_compression(self.compression, (None, "snappy", "gzip", "brotli", "zstd", "lz4"))

    def check(self, schema: pa.Schema) -> None:
        check_types(self.name, schema, _parquet_fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
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


def _parquet_fix(kind: pa.DataType) -> str | None:
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


@dataclass(frozen=True)
class IpcSink:
    """Writes Arrow IPC files; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "Arrow IPC"
    suffix: ClassVar[str] = ".arrow"

    compression: str | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression, (None, "lz4", "zstd"))

    def check(self, schema: pa.Schema) -> None:
        check_types(self.name, schema, _ipc_fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        # an IPC file has one dictionary per column, shared by all its batches
        table = pa.concat_tables(list(tables)).unify_dictionaries()
        options = pa.ipc.IpcWriteOptions(compression=self.compression)
        with pa.ipc.new_file(stream, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows_within(table, _BATCH_BYTES))


def _ipc_fix(kind: pa.DataType) -> str | None:
    schema, file = pa.schema([("column", kind)]), io.BytesIO()
    try:
        pa.ipc.new_file(file, schema).close()
        found: Any = pa.ipc.open_file(io.BytesIO(file.getvalue())).schema.field(0).type
    except pa.ArrowException as error:
        return f"{str(error).rstrip('.')}; cast it to another type or exclude it"
    return None if found == kind else f"it would be read back as {found}; cast it to that, or another type"


@dataclass(frozen=True)
class CsvSink(CompressedSink):
    """Writes CSV; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "CSV"
    extension: ClassVar[str] = ".csv"

    delimiter: str = ","

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise PlanError(
                f"delimiter={self.delimiter!r} must be one character, but neither a quote nor a line end"
            )

    def check(self, schema: pa.Schema) -> None:
        if not schema.names:
            raise PlanError("CSV cannot carry rows without columns: read at least one")
        check_types(self.name, schema, _csv_fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        import pyarrow.csv as pa_csv

        writer: Any = None
        options = pa_csv.WriteOptions(delimiter=self.delimiter)
        with compressed(stream, self.compression) as inner:
            for table in map(_plain, tables):
                _check_no_empty_lines(table)
                writer = writer or pa_csv.CSVWriter(inner, table.schema, write_options=options)
                writer.write_table(table)
            writer.close()


def _csv_fix(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_dictionary(kind):
        return _csv_fix(kind.value_type)
    tests = (
        *(types.is_null, types.is_boolean, types.is_integer, types.is_float32, types.is_float64),
        *(types.is_decimal128, types.is_temporal, types.is_string, types.is_large_string),
    )
    if any(test(kind) for test in tests) and not types.is_interval(kind):
        return None
    if types.is_float16(kind):
        return "cast it to pa.float32()"
    if types.is_decimal(kind):
        return "cast it to pa.decimal128(), or to text"
    if types.is_nested(kind):
        return "make a column of each part of it, or write JSON lines, Parquet or Arrow"
    return "cast it to pa.string(), or write Parquet or Arrow"


def _plain(table: pa.Table) -> pa.Table:
    """Decode dictionaries, and convert times to UTC: historical zone offsets have seconds."""
    kinds = [_plain_type(kind) for kind in table.schema.types]
    return table.cast(pa.schema(list(zip(table.schema.names, kinds, strict=True))))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _check_no_empty_lines(table: pa.Table) -> None:
    if table.num_columns == 1 and table.column(0).null_count:
        raise PlanError(
            f"column {table.schema.names[0]!r} has nulls and is alone, so that they would be empty lines, which "
            "readers of CSV skip: fill them, add a column, or write another format"
        )
