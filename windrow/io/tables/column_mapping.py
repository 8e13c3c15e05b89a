"""Map a table's columns to the columns of its data files: by name, by field id, or by log value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError
from windrow.io.catalog.schemas import unify_types

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class TableColumns:
    """A table's columns, and how to find them in data files."""

    # in table order, with field ids where the table has them
    schema: pa.Schema
    # columns whose value the table's log states per file; files need not store them
    log_columns: tuple[str, ...] = ()
    # the physical names of a column where they differ from its name; several after renames
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # whether to match by field id in files that have field ids, and by name in files without
    by_field_id: bool = False
    by_name: bool = True
    # the value of a column in files that lack it; null where there is no default
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> pa.Schema:
        """The columns that files can store."""
        return plain_schema(column for column in self.schema if column.name not in self.log_columns)

    @property
    def partitions(self) -> pa.Schema:
        """The columns whose values come from the log, in table order."""
        return plain_schema(column for column in self.schema if column.name in self.log_columns)

    def find(self, stored: pa.Schema, path: str) -> dict[str, str]:
        """The physical name of each column that a file has; a SourceError if one does not fit the table's."""
        columns = [column for column in self.schema if column.name not in self.log_columns]
        numbers = {_field_id(column): column.name for column in stored}
        numbers.pop(None, None)
        if self.by_field_id and numbers:
            found = {column.name: numbers.get(_field_id(column)) for column in columns}
        elif self.by_name:
            found = {column.name: self._find_name(column.name, stored) for column in columns}
        else:
            raise SourceError(
                f"{path} has no field ids, and the table no name mapping, so columns cannot be matched; "
                "set the table's property schema.name-mapping.default, or write the file again"
            )
        known = {name: physical for name, physical in found.items() if physical is not None}
        for name, physical in known.items():
            _check_fit(stored.field(physical), self.schema.field(name), path)
        return known

    def _find_name(self, name: str, stored: pa.Schema) -> str | None:
        return next((known for known in self.names.get(name, (name,)) if known in stored.names), None)


def plain_schema(columns: Iterable[pa.Field[Any]]) -> pa.Schema:
    """Strip columns to names, types and nullability, with 32-bit offsets."""
    return pa.schema([_plain(column) for column in columns])


def _plain(column: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(column.name, _plain_type(column.type), column.nullable)


def _plain_type(kind: Any) -> pa.DataType:
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_struct(kind):
        return pa.struct([_plain(kind.field(place)) for place in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_field), kind.list_size)
    return pa.list_(_plain(kind.value_field)) if pt.is_list(kind) or pt.is_large_list(kind) else kind


def _field_id(column: pa.Field[Any]) -> int | None:
    number = (column.metadata or {}).get(_FIELD_ID)
    return None if number is None else int(number)


def _check_fit(stored: pa.Field[Any], expected: pa.Field[Any], path: str) -> None:
    """Raise if casting to the table's type would change values or is impossible."""
    kind = _plain_type(expected.type)
    renamed = next(_renamed_fields(stored, expected), None)
    if renamed is not None:
        raise SourceError(
            f"column {expected.name!r} of {path}: its nested field {renamed!r} has another name in the table, which "
            "is not supported; write the file again (rewrite or compact the table)"
        )
    found = _plain_type(stored.type)
    if unify_types(found, kind) == kind or _can_cast(found, kind):
        return
    raise SourceError(
        f"column {expected.name!r} is {stored.type} in {path} but {kind} in the table: write the file again"
    )


def _can_cast(stored: Any, kind: Any) -> bool:
    """Whether a cast is lossless or checked: wider decimals, dates, timestamps, new nested fields."""
    if pt.is_decimal(stored) and pt.is_decimal(kind):
        fits = kind.precision - kind.scale >= stored.precision - stored.scale
        return bool(fits and kind.scale >= stored.scale)
    if pt.is_date(stored) and pt.is_timestamp(kind):
        return True
    if pt.is_integer(stored) and (pt.is_decimal(kind) or pt.is_float64(kind)):
        return True
    if pt.is_timestamp(stored) and pt.is_timestamp(kind):
        # casts raise for values that would lose digits; the timestamps of INT96 are in UTC, but do not say so
        return (stored.tz is None) == (kind.tz is None) or (stored.tz is None and kind.tz == "UTC")
    if pt.is_nested(stored) and type(stored) is type(kind) and stored.num_fields:
        return _can_cast_nested(stored, kind)
    return stored == kind


def _can_cast_nested(stored: Any, kind: Any) -> bool:
    known = {inner.name: inner for inner in _children(kind)}
    pairs = (
        [(inner, known.get(inner.name)) for inner in _children(stored)]
        if pt.is_struct(stored)
        else list(zip(_children(stored), _children(kind), strict=True))
    )
    # a nested field that the table has dropped is ignored
    return all(
        other is None
        or unify_types(inner.type, other.type) == other.type
        or _can_cast(inner.type, other.type)
        for inner, other in pairs
    )


def _renamed_fields(stored: pa.Field[Any], expected: pa.Field[Any]) -> Iterator[str]:
    """The nested fields whose field id and name do not match as in the table."""
    if not pt.is_nested(stored.type) or not pt.is_nested(expected.type):
        return
    ours, theirs = _children(expected.type), _children(stored.type)
    if not pt.is_struct(expected.type):
        for inner, other in zip(theirs, ours, strict=False):
            yield from _renamed_fields(inner, other)
        return
    numbers = {_field_id(inner): inner for inner in ours}
    names = {inner.name: inner for inner in ours}
    for inner in theirs:
        number = _field_id(inner)
        same = numbers.get(number) if number is not None and None not in numbers else names.get(inner.name)
        if (same is None) != (inner.name not in names) or (same is not None and same.name != inner.name):
            yield inner.name
        elif same is not None:
            yield from _renamed_fields(inner, same)


def _children(kind: Any) -> list[pa.Field[Any]]:
    return [kind.field(place) for place in range(kind.num_fields)]
