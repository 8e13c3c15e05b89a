"""Schemas: one for all files, with type widening that loses nothing, and the selection of columns from it.

Schemas unify when they have the same columns, in any order, and each column's types unify:

- null with any type;
- integers: the narrowest type that holds both (none for ``uint64`` with a signed type);
- floats: the wider type (never with integers, since ``int64`` to ``double`` loses digits);
- timestamps of one time zone, times, and durations: the finer unit;
- ``string`` with ``large_string``, ``binary`` with ``large_binary``, ``list`` with ``large_list``: the large type;
- a dictionary with plain values: plain values; two dictionaries: the wider indices;
- lists and structs whose children unify.

The first file determines the column order and the field metadata. Schema metadata (such as pandas' index) is
dropped, since it describes one file.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import PlanError, SourceError

__all__ = ["make_unknown_column_error", "select_columns", "unify_schemas", "unify_types"]

_NAMES_SHOWN = 3
_UNITS = ("s", "ms", "us", "ns")
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def unify_schemas(
    schemas: Sequence[tuple[str, pa.Schema]],
    unify: Callable[[pa.DataType, pa.DataType], pa.DataType | None] | None = None,
) -> pa.Schema:
    """Unify the schemas of files given as (path, schema), in the first file's column order.

    ``unify`` returns the type that holds the values of two types, or None; by default `unify_types`.
    """
    first_path, first = schemas[0]
    _check_unique_names(first_path, first)
    unified = {field.name: (first_path, field) for field in first}
    for path, schema in schemas[1:]:
        _check_unique_names(path, schema)
        _check_same_columns(first_path, first, path, schema)
        for name, (origin, known) in unified.items():
            found = schema.field(name)
            kind = (unify or unify_types)(known.type, found.type)
            if kind is None:
                raise SourceError(
                    f"column {name!r} is {found.type} in {path} but {known.type} in {origin}: "
                    f"give them the same type, or read them separately"
                )
            widened = known.with_type(kind).with_nullable(known.nullable or found.nullable)
            unified[name] = (origin if kind == known.type else path, widened)
    return pa.schema([field for _, field in unified.values()])


def unify_types(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both without loss, or None."""
    if left == right:
        return left
    if pt.is_null(left) or pt.is_null(right):
        return right if pt.is_null(left) else left
    if pt.is_dictionary(left) or pt.is_dictionary(right):
        return _unify_dictionaries(left, right)
    if pt.is_integer(left) and pt.is_integer(right):
        return _unify_integers(left, right)
    if pt.is_floating(left) and pt.is_floating(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    return _unify_temporal(left, right) or _unify_sizes(left, right) or _unify_nested(left, right)


def _unify_integers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_signed_integer(left) == pt.is_signed_integer(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    signed, unsigned = (left, right) if pt.is_signed_integer(left) else (right, left)
    return _SIGNED.get(max(signed.bit_width, 2 * unsigned.bit_width))


def _unify_dictionaries(left: Any, right: Any) -> pa.DataType | None:
    if not (pt.is_dictionary(left) and pt.is_dictionary(right)):
        plain = [kind.value_type if pt.is_dictionary(kind) else kind for kind in (left, right)]
        return unify_types(*plain)
    codes = _unify_integers(left.index_type, right.index_type)
    values = unify_types(left.value_type, right.value_type)
    if codes is None or values is None or left.ordered != right.ordered:
        return None
    return pa.dictionary(codes, values, left.ordered)


def _unify_temporal(left: Any, right: Any) -> pa.DataType | None:
    if pt.is_timestamp(left) and pt.is_timestamp(right) and left.tz == right.tz:
        return pa.timestamp(_finer(left, right), left.tz)
    if pt.is_duration(left) and pt.is_duration(right):
        return pa.duration(_finer(left, right))
    if pt.is_time(left) and pt.is_time(right):
        unit = _finer(left, right)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    return None


def _finer(left: Any, right: Any) -> Any:
    return max(left.unit, right.unit, key=_UNITS.index)


def _unify_sizes(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    pair = {left, right}
    if pair == {pa.string(), pa.large_string()}:
        return pa.large_string()
    return pa.large_binary() if pair == {pa.binary(), pa.large_binary()} else None


def _unify_nested(left: Any, right: Any) -> pa.DataType | None:
    lists = [pt.is_list(kind) or pt.is_large_list(kind) for kind in (left, right)]
    if all(lists):
        inner = _unify_fields(left.value_field, right.value_field)
        large = pt.is_large_list(left) or pt.is_large_list(right)
        return None if inner is None else pa.large_list(inner) if large else pa.list_(inner)
    if pt.is_fixed_size_list(left) and pt.is_fixed_size_list(right) and left.list_size == right.list_size:
        inner = _unify_fields(left.value_field, right.value_field)
        return None if inner is None else pa.list_(inner, left.list_size)
    if pt.is_struct(left) and pt.is_struct(right):
        return _unify_structs(left, right)
    return None


def _unify_structs(left: Any, right: Any) -> pa.DataType | None:
    if [field.name for field in left] != [field.name for field in right]:
        return None
    fields = [_unify_fields(one, other) for one, other in zip(left, right, strict=True)]
    whole = [field for field in fields if field is not None]
    return pa.struct(whole) if len(whole) == len(fields) else None


def _unify_fields(left: pa.Field[Any], right: pa.Field[Any]) -> pa.Field[Any] | None:
    kind = unify_types(left.type, right.type)
    return None if kind is None else pa.field(left.name, kind, left.nullable or right.nullable)


def _check_unique_names(path: str, schema: pa.Schema) -> None:
    duplicates = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if duplicates:
        raise SourceError(f"{path} has more than one column {duplicates[0]!r}: make names unique")


def _check_same_columns(first_path: str, first: pa.Schema, path: str, schema: pa.Schema) -> None:
    for here, there, where, other in ((first, schema, path, first_path), (schema, first, first_path, path)):
        names = set(there.names)
        for field in here:
            if field.name not in names:
                raise SourceError(
                    f"column {field.name!r} is missing in {where} but {field.type} in {other}: "
                    f"give all of them the same columns, or read them separately"
                )


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of the selected columns, in the given order; all columns for None."""
    if columns is None:
        if not len(schema):
            raise PlanError("the files have no columns: there is nothing to read")
        return schema
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise PlanError(f"columns={columns!r}: give a list of column names")
    if not columns:
        raise PlanError("columns=[] selects nothing: name at least one column, or leave it out for all")
    duplicates = sorted({name for name in columns if list(columns).count(name) > 1})
    if duplicates:
        raise PlanError(f"columns= names {duplicates[0]!r} more than once: name each column once")
    for name in columns:
        if name not in schema.names:
            raise make_unknown_column_error(name, schema.names, "columns=")
    return pa.schema([schema.field(name) for name in columns])


def make_unknown_column_error(name: str, known: Sequence[str], where: str) -> PlanError:
    """Return the error for an unknown column, with the most similar names."""
    by_casefold = {other.casefold(): other for other in reversed(known)}
    near = difflib.get_close_matches(name.casefold(), by_casefold, _NAMES_SHOWN, cutoff=0.5)
    if near:
        nearest = _format_names([by_casefold[other] for other in near])
        return PlanError(f"{where} has no column {name!r}: did you mean {nearest}?")
    more = ", ..." if len(known) > 2 * _NAMES_SHOWN else ""
    return PlanError(
        f"{where} has no column {name!r}: there are {_format_names(known[: 2 * _NAMES_SHOWN])}{more}"
    )


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
