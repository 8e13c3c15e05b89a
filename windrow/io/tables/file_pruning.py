"""Which files can hold a row that a filter keeps, by what a table's log tells of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Bounds", "has_bounds", "kept_files"]


@dataclass(frozen=True)
class Bounds:
    """What is known of a column in a file.

    Attributes
    ----------
    low, high
        Bounds of the values that are not null; None where nothing is known.
    nulls, rows
        How many values are null, and how many there are; None where nothing is known.
    """

    low: Any = None
    high: Any = None
    nulls: int | None = None
    rows: int | None = None


def has_bounds(kind: pa.DataType) -> bool:
    """Whether bounds of a type are used: not those of floats, which say nothing of NaN."""
    return any(check(kind) for check in (pt.is_integer, pt.is_date32, pt.is_timestamp, pt.is_string))


def kept_files(
    expression: pc.Expression, schema: pa.Schema, known: Sequence[Mapping[str, Bounds]]
) -> NDArray[np.bool_]:
    """(files,) whether each may hold a row for which an expression is true; reads nothing.

    Arrow simplifies the expression by what is guaranteed of a fragment, as it does for Parquet.
    """
    import pyarrow.dataset as ds
    import pyarrow.fs as pa_fs

    format, nowhere = ds.ParquetFileFormat(), pa_fs.LocalFileSystem()
    fragments = [
        format.make_fragment(str(place), nowhere, partition_expression=_guarantee(schema, bounds))
        for place, bounds in enumerate(known)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, format, nowhere)
    kept = np.zeros(len(known), np.bool_)
    kept[[int(fragment.path) for fragment in dataset.get_fragments(filter=expression)]] = True
    return kept


def _guarantee(schema: pa.Schema, known: Mapping[str, Bounds]) -> pc.Expression:
    import pyarrow.compute as pc

    guarantee = pc.scalar(True)
    for name, bounds in known.items():
        for part in _parts(pc.field(name), schema.field(name).type, bounds):
            guarantee = guarantee & part
    return guarantee


def _parts(column: pc.Expression, kind: pa.DataType, bounds: Bounds) -> list[pc.Expression]:
    if bounds.nulls is not None and bounds.nulls == bounds.rows:
        return [column.is_null()]
    parts = []
    if bounds.low is not None:
        parts.append(column >= pa.scalar(bounds.low, kind))
    if bounds.high is not None:
        parts.append(column <= pa.scalar(bounds.high, kind))
    return parts if bounds.nulls == 0 else [part | column.is_null() for part in parts]
