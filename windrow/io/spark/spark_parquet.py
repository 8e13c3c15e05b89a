"""SparkSink: Parquet files whose columns Spark reads with the same types and values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.io.catalog.value_sizes import child_types
from windrow.io.sinks.arrow_sinks import ParquetSink
from windrow.io.sinks.sink import check_types

_MAX_DIGITS = 38
_PARQUET = ParquetSink()


@dataclass(frozen=True)
class SparkSink:
    """Writes Parquet for Spark; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "Spark"
    suffix: ClassVar[str] = ParquetSink.suffix

    def check(self, schema: pa.Schema) -> None:
        check_types(self.name, schema, _fix)
        _PARQUET.check(_spark_schema(schema))

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file: half floats as floats, nanoseconds as microseconds; raise if that loses precision."""
        _PARQUET.write(map(_for_spark, tables), stream, label)


def _spark_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column.with_type(_spark_type(column.type)) for column in schema])


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _spark_type(kind.storage_type)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    return kind


def _for_spark(table: pa.Table) -> pa.Table:
    schema = _spark_schema(table.schema)
    columns = [_cast(column, field) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray[Any], target: pa.Field[Any]) -> pa.ChunkedArray[Any]:
    if isinstance(column.type, pa.BaseExtensionType):
        stored = [chunk.storage for chunk in column.chunks]
        return _cast(pa.chunked_array(stored, column.type.storage_type), target)
    try:
        return column if column.type == target.type else column.cast(target.type)
    except pa.ArrowInvalid as error:
        raise PlanError(
            f"column {target.name!r}: {error}; Spark has microseconds: round the column in map_batches"
        ) from error


def _fix(kind: pa.DataType) -> str | None:
    inner = _inner_types(kind)
    if inner:
        return next((fix for part in inner if (fix := _nested_fix(part))), None)
    if pa.types.is_time(kind):
        return "Spark has no time of day; cast it to an integer or text"
    if pa.types.is_duration(kind):
        return "Spark would read a plain integer; cast it to int64 yourself"
    if pa.types.is_null(kind):
        return "Spark would read integers; cast it to the intended type"
    if pa.types.is_decimal(kind) and kind.precision > _MAX_DIGITS:
        return f"Spark's decimals have {_MAX_DIGITS} digits; cast it to fewer"
    return None


def _nested_fix(kind: pa.DataType) -> str | None:
    if _spark_type(kind) != kind:
        return f"Spark has no {kind}; cast the nested values, or select them as a column of their own"
    return _fix(kind)


def _inner_types(kind: Any) -> list[pa.DataType]:
    """Return the types that a type contains; empty for a primitive type."""
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    return child_types(kind) if pa.types.is_nested(kind) else []
