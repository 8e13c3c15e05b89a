"""Write JSON lines: one object per row, with every column in each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from windrow.io.sinks.compression import check_compression, compressed, compression_suffix
from windrow.io.sinks.json_text import json_lines
from windrow.io.sinks.sink import check_types

__all__ = ["JsonSink", "json_fix"]

# limits of the rows that are converted to text together
_BATCH_BYTES = 8 * 2**20
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class JsonSink:
    """Writes JSON lines; see ``windrow.io.sinks.sink.Sink``.

    Attributes
    ----------
    compression
        Of the whole file: ``"gzip"``, ``"bz2"``, ``"zstd"``, ``"lz4"`` or None.
    """

    compression: str | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression)

    @property
    def name(self) -> str:
        """``"JSON"``."""
        return "JSON"

    @property
    def suffix(self) -> str:
        """``".jsonl"`` plus the suffix of the compression."""
        return f".jsonl{compression_suffix(self.compression)}"

    def check(self, schema: pa.Schema) -> None:
        """Raise for types that JSON cannot represent."""
        check_types(self.name, schema, json_fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file."""
        with compressed(stream, self.compression) as inner:
            for table in tables:
                row_bytes = max(1, table.nbytes // max(1, table.num_rows))
                rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES // row_bytes))
                for batch in table.to_batches(max_chunksize=rows):
                    inner.write(_bytes_of(json_lines(batch)))


def _bytes_of(texts: Any) -> Any:
    """The concatenated texts: the values buffer, without a copy."""
    _, offsets, values = texts.buffers()
    if values is None or not len(texts):
        return b""
    bounds = memoryview(offsets).cast("q")
    first, last = bounds[texts.offset], bounds[texts.offset + len(texts)]
    return values.slice(first, last - first)


def json_fix(kind: pa.DataType) -> str | None:
    """How to fix a type that JSON cannot represent; None if it can."""
    types = pa.types
    if types.is_dictionary(kind):
        return json_fix(kind.value_type)
    if types.is_map(kind):
        return "make it a list of structs of key and value"
    if types.is_struct(kind):
        return next(filter(None, (json_fix(kind.field(at).type) for at in range(kind.num_fields))), None)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(test(kind) for test in lists):
        return json_fix(kind.value_type)
    tests = (
        *(types.is_null, types.is_boolean, types.is_integer, types.is_float32, types.is_float64),
        *(types.is_decimal128, types.is_decimal256, types.is_date32, types.is_timestamp),
        *(types.is_string, types.is_large_string, types.is_string_view),
    )
    if any(test(kind) for test in tests):
        return None
    if types.is_float16(kind):
        return "cast it to pa.float32()"
    return "cast it to pa.string() or an integer, or write Parquet or Arrow"
