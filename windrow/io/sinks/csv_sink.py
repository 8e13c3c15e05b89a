"""Write CSV files with Arrow: a header, one line per row, and an empty field for null.

Text is quoted, which distinguishes the empty string from null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.io.sinks.sink import FILE_COMPRESSIONS, check_compression, check_types, compressed

__all__ = ["CsvSink"]


@dataclass(frozen=True)
class CsvSink:
    """Writes CSV; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "CSV"

    compression: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        check_compression(self.compression, FILE_COMPRESSIONS)
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise PlanError(
                f"delimiter={self.delimiter!r} must be one character, but neither a quote nor a line end"
            )

    @property
    def suffix(self) -> str:
        """``".csv"`` plus the suffix of the compression."""
        return f".csv{FILE_COMPRESSIONS[self.compression]}"

    def check(self, schema: pa.Schema) -> None:
        """Raise for types that Arrow does not read back from CSV text."""
        if not schema.names:
            raise PlanError("CSV cannot carry rows without columns: read at least one")
        check_types(self.name, schema, _fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file."""
        import pyarrow.csv as pa_csv

        writer: Any = None
        options = pa_csv.WriteOptions(delimiter=self.delimiter)
        with compressed(stream, self.compression) as inner:
            for table in map(_plain, tables):
                _check_no_empty_lines(table)
                writer = writer or pa_csv.CSVWriter(inner, table.schema, write_options=options)
                writer.write_table(table)
            writer.close()


def _fix(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_dictionary(kind):
        return _fix(kind.value_type)
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
