"""What is known of kept words: noted with the tables, so that each epoch need not look for it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from windrow.core.frame_of_reference import packs
from windrow.shuffle.kernels.bit_packing import find_ranges

__all__ = ["attach_ranges", "detach_ranges"]

_KEY = b"windrow:ranges"

Ranges = Mapping[int, tuple[int, int]]


def attach_ranges(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The same tables, whose schema tells the least and the largest word that any has in a column.

    Examples
    --------
    >>> (table,) = attach_ranges([pa.table({"x": [3, -1], "s": ["a", "b"]})])
    >>> schema, ranges = detach_ranges(table.schema)
    >>> schema.metadata, ranges
    (None, {0: (-1, 3)})
    """
    ranges = {}
    for number, kind in enumerate(tables[0].schema.types if tables else ()):
        found = find_ranges([table.column(number) for table in tables]) if packs(kind) else None
        if found is not None:
            ranges[number] = found
    note = {_KEY: json.dumps(list(ranges.items())).encode()}
    return [table.replace_schema_metadata({**(table.schema.metadata or {}), **note}) for table in tables]


def detach_ranges(schema: pa.Schema) -> tuple[pa.Schema, Ranges]:
    """A schema without what was noted, and that."""
    metadata = dict(schema.metadata or {})
    ranges = {number: (low, high) for number, (low, high) in json.loads(metadata.pop(_KEY, b"[]"))}
    return schema.with_metadata(metadata) if metadata else schema.remove_metadata(), ranges
