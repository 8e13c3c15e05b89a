"""Column statistics (min, max) of cached blocks: stored in the schema metadata, so that they are computed once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from windrow.core.frame_of_reference import is_packable
from windrow.shuffle.kernels.bit_packing import find_ranges

__all__ = ["attach_ranges", "detach_ranges"]

_KEY = b"windrow:ranges"

Ranges = Mapping[int, tuple[int, int]]


def attach_ranges(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Add the min and max of each integer or time column, over all tables, to the schema metadata.

    Examples
    --------
    >>> (table,) = attach_ranges([pa.table({"x": [3, -1], "s": ["a", "b"]})])
    >>> schema, ranges = detach_ranges(table.schema)
    >>> schema.metadata, ranges
    (None, {0: (-1, 3)})
    """
    ranges = {}
    for number, kind in enumerate(tables[0].schema.types if tables else ()):
        found = find_ranges([table.column(number) for table in tables]) if is_packable(kind) else None
        if found is not None:
            ranges[number] = found
    note = {_KEY: json.dumps(list(ranges.items())).encode()}
    return [table.replace_schema_metadata({**(table.schema.metadata or {}), **note}) for table in tables]


def detach_ranges(schema: pa.Schema) -> tuple[pa.Schema, Ranges]:
    """Split a schema into the one without column statistics, and the statistics by column number."""
    metadata = dict(schema.metadata or {})
    ranges = {number: (low, high) for number, (low, high) in json.loads(metadata.pop(_KEY, b"[]"))}
    return schema.with_metadata(metadata) if metadata else schema.remove_metadata(), ranges
