"""The columns of a schema by their width, found once a schema: with a thousand columns it takes milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from windrow.core.frame_of_reference import is_packable
from windrow.shuffle.kernels.fixed_width import fixed_width_bytes

__all__ = ["ColumnWidths", "column_widths"]

# tasks of a job share one schema object
_KNOWN_SCHEMAS = 16


@dataclass(frozen=True, eq=False)
class ColumnWidths:
    """The columns of a schema, by number.

    Attributes
    ----------
    schema
        The schema.
    kinds
        The type of each column.
    widths
        Bytes per row of each column; 0 for those without a fixed width.
    packable
        Whether each column can be frame-of-reference encoded.
    fixed, others
        The columns with and without a fixed width.
    by_width
        The columns with a fixed width, by width, in ascending order.
    """

    schema: pa.Schema
    kinds: tuple[pa.DataType, ...]
    widths: tuple[int, ...]
    packable: tuple[bool, ...]
    fixed: tuple[int, ...]
    others: tuple[int, ...]
    by_width: dict[int, list[int]]


_known: dict[int, ColumnWidths] = {}


def column_widths(schema: pa.Schema) -> ColumnWidths:
    """The columns of a schema by width; remembered for the schema objects seen last.

    >>> column_widths(pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64()})).by_width
    {8: [0, 2]}
    """
    found = _known.get(id(schema))
    # the entry keeps its schema alive, so that no other one can have its id
    if found is not None and found.schema is schema:
        return found
    kinds = tuple(schema.types)
    widths = tuple(fixed_width_bytes(kind) for kind in kinds)
    by_width: dict[int, list[int]] = {width: [] for width in sorted(set(widths) - {0})}
    for number, width in enumerate(widths):
        if width:
            by_width[width].append(number)
    fixed = tuple(number for number, width in enumerate(widths) if width)
    others = tuple(number for number, width in enumerate(widths) if not width)
    if len(_known) >= _KNOWN_SCHEMAS:
        _known.clear()
    packable = tuple(map(is_packable, kinds))
    found = _known[id(schema)] = ColumnWidths(schema, kinds, widths, packable, fixed, others, by_width)
    return found
