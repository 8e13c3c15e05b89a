"""Finds columns of types that Arrow knows, but pyarrow has no arrays of."""

from __future__ import annotations

import pyarrow as pa

from windrow.core.errors import SourceError

__all__ = ["check_supported"]


def check_supported(schema: pa.Schema, where: str) -> None:
    """Raise a SourceError for a column that pyarrow cannot read, such as intervals of months.

    Arrow has three types of intervals, and pyarrow arrays of only one: ``month_day_nano_interval``.
    """
    for field in schema:
        kind = _find_unsupported(field.type)
        if kind is not None:
            inside = "" if kind.equals(field.type) else f", in {field.type}"
            raise SourceError(
                f"{where}: column {field.name!r} is {kind}{inside}, and pyarrow has no arrays of this type: leave the "
                "column out, or write it again as integers or as month_day_nano_interval"
            )


def _find_unsupported(kind: pa.DataType) -> pa.DataType | None:
    """The first type without arrays in a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _find_unsupported(kind.storage_type)
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        inner = [kind.value_type]
    if inner:
        return next((found for each in inner if (found := _find_unsupported(each)) is not None), None)
    try:
        pa.nulls(0, kind)
    except KeyError:
        # pyarrow looks up the class of an array by the number of its type
        return kind
    return None
