"""The Arrow schema of a footer: the one that ``pyarrow.parquet.read_table`` gives the file."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa

__all__ = ["REMEMBERED_SCHEMAS", "SchemaKey", "find_arrow_schema"]

# files of a dataset mostly have one schema, and each is remembered with a footer that has it
REMEMBERED_SCHEMAS = 16
_ARROW_SCHEMA = b"ARROW:schema"


def find_arrow_schema(metadata: Any) -> pa.Schema:
    """Return the Arrow schema of a parsed footer, in which the C++ reader gives the columns.

    ``metadata.schema.to_arrow_schema()`` differs for logical types such as UUID and JSON that no Arrow schema in the
    footer describes: it does not make extension types of them.
    """
    return _find(SchemaKey(metadata))


class SchemaKey:
    """The part of a footer that determines its Arrow schema, as a key that takes microseconds."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        # ParquetSchema.equals() compares leaves only: it takes a map for a list of structs
        tree = repr(metadata.schema).partition("\n")[2]
        self._key = (tree, (metadata.metadata or {}).get(_ARROW_SCHEMA))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SchemaKey) and self._key == other._key


@lru_cache(REMEMBERED_SCHEMAS)
def _find(key: SchemaKey) -> pa.Schema:
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(b""), metadata=key.metadata).schema_arrow
