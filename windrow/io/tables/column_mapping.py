"""Which column of a file is which column of a table: by name, or by the number that a table gives it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError
from windrow.io.catalog.schemas import unify_types

__all__ = ["TableColumns", "plain_schema"]

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, as they are to be found in its files.

    Attributes
    ----------
    schema
        All columns in the table's order, with the numbers of fields where the table has them.
    told
        The names of columns that the table's log tells for each file, and no file needs to have.
    names
        What files call a column, where that is not its name; several for those that changed it.
    by_number
        Whether columns are found by the numbers of their fields, where a file has any.
    named
        Whether columns of files without such numbers are found by name.
    defaults
        What stands for a column in files that lack it; null where nothing is said.
    """

    schema: pa.Schema
    told: tuple[str, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by_number: bool = False
    named: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stored(self) -> pa.Schema:
        """The columns that files may have."""
        return plain_schema(pa.schema([column for column in self.schema if column.name not in self.told]))

    @property
    def partitions(self) -> pa.Schema:
        """The columns that the log tells, in the table's order."""
        return plain_schema(pa.schema([column for column in self.schema if column.name in self.told]))

    def find(self, stored: pa.Schema, path: str) -> dict[str, str]:
        """What a file calls each column that it has.

        Raises
        ------
        SourceError
            If nothing tells which column is which, or a type does not fit the table's.
        """
        wanted = [column for column in self.schema if column.name not in self.told]
        numbers = {_number(column): column.name for column in stored}
        numbers.pop(None, None)
        if self.by_number and numbers:
            found = {column.name: numbers.get(_number(column)) for column in wanted}
        elif self.named:
            found = {column.name: self._find_name(column.name, stored) for column in wanted}
        else:
            raise SourceError(
                f"{path} has no field ids, and the table no name mapping: nothing tells which column is which; "
                "set the table's property schema.name-mapping.default, or write the file again"
            )
        known = {name: physical for name, physical in found.items() if physical is not None}
        for name, physical in known.items():
            _check_fit(stored.field(physical), self.schema.field(name), path)
        return known

    def _find_name(self, name: str, stored: pa.Schema) -> str | None:
        return next((known for known in self.names.get(name, (name,)) if known in stored.names), None)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema with nothing but names, types and what may be null, and with offsets of 32 bits."""
    return pa.schema([_plain(column) for column in schema])


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


def _number(column: pa.Field[Any]) -> int | None:
    told = (column.metadata or {}).get(_FIELD_ID)
    return None if told is None else int(told)


def _check_fit(stored: pa.Field[Any], wanted: pa.Field[Any], path: str) -> None:
    """Refuse what a cast would change or could not do."""
    kind = _plain_type(wanted.type)
    moved = next(_moved_fields(stored, wanted), None)
    if moved is not None:
        raise SourceError(
            f"column {wanted.name!r} of {path}: its nested field {moved!r} has another name in the table, which "
            "is not read; write the file again (rewrite or compact the table)"
        )
    found = _plain_type(stored.type)
    if unify_types(found, kind) == kind or _casts(found, kind):
        return
    raise SourceError(
        f"column {wanted.name!r} is {stored.type} in {path} but {kind} in the table: write the file again"
    )


def _casts(stored: Any, kind: Any) -> bool:
    """Whether a cast loses nothing that Arrow would not refuse: wider decimals, dates, nested fields that are new."""
    if pt.is_decimal(stored) and pt.is_decimal(kind):
        room = kind.precision - kind.scale >= stored.precision - stored.scale
        return bool(room and kind.scale >= stored.scale)
    if pt.is_date(stored) and pt.is_timestamp(kind):
        return True
    if pt.is_integer(stored) and (pt.is_decimal(kind) or pt.is_float64(kind)):
        return True
    if pt.is_timestamp(stored) and pt.is_timestamp(kind):
        # values that would lose digits are an error when they are read
        return (stored.tz is None) == (kind.tz is None)
    if pt.is_nested(stored) and type(stored) is type(kind) and stored.num_fields:
        return _nested_casts(stored, kind)
    return stored == kind


def _nested_casts(stored: Any, kind: Any) -> bool:
    known = {inner.name: inner for inner in _children(kind)}
    pairs = (
        [(inner, known.get(inner.name)) for inner in _children(stored)]
        if pt.is_struct(stored)
        else list(zip(_children(stored), _children(kind), strict=True))
    )
    # a nested field that the table has dropped falls away
    return all(
        other is None or unify_types(inner.type, other.type) == other.type or _casts(inner.type, other.type)
        for inner, other in pairs
    )


def _moved_fields(stored: pa.Field[Any], wanted: pa.Field[Any]) -> Iterator[str]:
    """The nested fields whose number and name do not go together as in the table."""
    if not pt.is_nested(stored.type) or not pt.is_nested(wanted.type):
        return
    ours, theirs = _children(wanted.type), _children(stored.type)
    if not pt.is_struct(wanted.type):
        for inner, other in zip(theirs, ours, strict=False):
            yield from _moved_fields(inner, other)
        return
    numbers = {_number(inner): inner for inner in ours}
    names = {inner.name: inner for inner in ours}
    for inner in theirs:
        number = _number(inner)
        same = numbers.get(number) if number is not None and None not in numbers else names.get(inner.name)
        if (same is None) != (inner.name not in names) or (same is not None and same.name != inner.name):
            yield inner.name
        elif same is not None:
            yield from _moved_fields(inner, same)


def _children(kind: Any) -> list[pa.Field[Any]]:
    return [kind.field(place) for place in range(kind.num_fields)]
