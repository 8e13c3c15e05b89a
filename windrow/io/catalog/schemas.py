"""Schemas: one for all files, merged column by column; types that hold the values of two others.

Columns are matched by name, in any order. The types of a column unify by widening (`unify_types`); a column
that some schemas lack is nullable. A column whose types do not unify stays in the merged schema, as the first
file has it, with an error that selecting it raises: unselected columns need not agree.

The first file determines the column order and the field metadata; columns that only later files have follow.
Schema metadata (such as pandas' index) is dropped, since it describes one file.

`unify_types` finds a type that holds the values of two others:

- null with any type;
- integers: the narrowest type that holds both (none for ``uint64`` with a signed type);
- floats: the wider type; an integer with a float: the narrowest float that holds every integer of the type,
  else ``double``, where the cast of a value that ``double`` cannot hold is an error;
- decimals: the larger number of digits on each side of the point;
- timestamps of one time zone, times, and durations: the finer unit;
- ``string``, ``binary`` and lists with their large types or views: the large type;
- a dictionary with plain values: plain values; two dictionaries: the wider indices;
- an extension type with its storage: the storage;
- lists whose items unify, and structs whose common fields do: the union of the fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError
from windrow.io.catalog.value_sizes import storage_type

_UNITS = ("s", "ms", "us", "ns")
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
# the digits of a float in binary
_FLOATS = ((11, pa.float16()), (24, pa.float32()), (53, pa.float64()))
_DECIMALS = ((38, pa.decimal128), (76, pa.decimal256))
Unify = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]
_FIX = (
    "give all files the same type, give one that holds both with schema=, or exclude the column with columns="
)


def unify_types(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both, or None.

    >>> unify_types(pa.int32(), pa.float32()), unify_types(pa.string(), pa.int8())
    (DataType(double), None)
    """
    if left == right:
        return left
    if pt.is_null(left) or pt.is_null(right):
        return right if pt.is_null(left) else left
    if isinstance(left, pa.BaseExtensionType) or isinstance(right, pa.BaseExtensionType):
        return _unify_extensions(left, right)
    if pt.is_dictionary(left) or pt.is_dictionary(right):
        return _unify_dictionaries(left, right)
    return (
        _unify_numbers(left, right)
        or _unify_temporal(left, right)
        or _unify_sizes(left, right)
        or _unify_nested(left, right)
    )


def _unify_extensions(left: Any, right: Any) -> pa.DataType | None:
    both = isinstance(left, pa.BaseExtensionType) and isinstance(right, pa.BaseExtensionType)
    # storage means something else under each extension type
    return None if both else unify_types(storage_type(left), storage_type(right))


def _unify_dictionaries(left: Any, right: Any) -> pa.DataType | None:
    if not (pt.is_dictionary(left) and pt.is_dictionary(right)):
        plain = [kind.value_type if pt.is_dictionary(kind) else kind for kind in (left, right)]
        return unify_types(*plain)
    codes = _unify_integers(left.index_type, right.index_type)
    values = unify_types(left.value_type, right.value_type)
    if codes is None or values is None or left.ordered != right.ordered:
        return None
    return pa.dictionary(codes, values, left.ordered)


def _unify_numbers(left: Any, right: Any) -> pa.DataType | None:
    if pt.is_decimal(left) and pt.is_decimal(right):
        return _unify_decimals(left, right)
    if pt.is_integer(left) and pt.is_integer(right):
        return _unify_integers(left, right)
    if pt.is_floating(left) and pt.is_floating(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    if pt.is_floating(left) and pt.is_integer(right):
        return _unify_numbers(right, left)
    if pt.is_integer(left) and pt.is_floating(right):
        digits = left.bit_width - pt.is_signed_integer(left)
        holding = next((kind for most, kind in _FLOATS if digits <= most), pa.float64())
        return max(holding, right, key=lambda kind: kind.bit_width)
    return None


def _unify_integers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pt.is_signed_integer(left) == pt.is_signed_integer(right):
        return max(left, right, key=lambda kind: kind.bit_width)
    signed, unsigned = (left, right) if pt.is_signed_integer(left) else (right, left)
    return _SIGNED.get(max(signed.bit_width, 2 * unsigned.bit_width))


def _unify_decimals(left: Any, right: Any) -> pa.DataType | None:
    scale = max(left.scale, right.scale)
    precision = scale + max(kind.precision - kind.scale for kind in (left, right))
    widest = max(left.bit_width, right.bit_width)
    for most, make in _DECIMALS:
        if precision <= most and make(most).bit_width >= widest:
            return make(precision, scale)
    return None


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
    if pair <= {pa.string(), pa.large_string(), pa.string_view()}:
        return pa.large_string()
    return pa.large_binary() if pair <= {pa.binary(), pa.large_binary(), pa.binary_view()} else None


def _unify_nested(left: Any, right: Any) -> pa.DataType | None:
    if _is_list(left) and _is_list(right):
        inner = _unify_fields(left.value_field, right.value_field)
        small = pt.is_list(left) and pt.is_list(right)
        return None if inner is None else pa.list_(inner) if small else pa.large_list(inner)
    if pt.is_fixed_size_list(left) and pt.is_fixed_size_list(right) and left.list_size == right.list_size:
        inner = _unify_fields(left.value_field, right.value_field)
        return None if inner is None else pa.list_(inner, left.list_size)
    if pt.is_map(left) and pt.is_map(right):
        key, item = (
            unify_types(left.key_type, right.key_type),
            _unify_fields(left.item_field, right.item_field),
        )
        return None if key is None or item is None else pa.map_(key, item)
    return unify_structs(left, right) if pt.is_struct(left) and pt.is_struct(right) else None


def _is_list(kind: pa.DataType) -> bool:
    views = pt.is_list_view(kind) or pt.is_large_list_view(kind)
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or views)


def unify_structs(left: Any, right: Any, unify: Unify = unify_types) -> pa.DataType | None:
    """The struct of the fields of two; None if the types of a common one do not unify."""
    ours, theirs = ({field.name: field for field in kind} for kind in (left, right))
    if len(ours) < left.num_fields or len(theirs) < right.num_fields:
        return None
    fields = []
    for name in {**ours, **theirs}:
        if name in ours and name in theirs:
            field = _unify_fields(ours[name], theirs[name], unify)
        else:
            field = (ours.get(name) or theirs[name]).with_nullable(True)
        if field is None:
            return None
        fields.append(field)
    return pa.struct(fields)


def _unify_fields(
    left: pa.Field[Any], right: pa.Field[Any], unify: Unify = unify_types
) -> pa.Field[Any] | None:
    kind = unify(left.type, right.type)
    return None if kind is None else pa.field(left.name, kind, left.nullable or right.nullable)


@dataclass(frozen=True)
class MergedSchema:
    """The columns of all files, and an error message for each one whose types do not unify."""

    schema: pa.Schema
    conflicts: Mapping[str, str]

    def check(self, names: Iterable[str]) -> None:
        """Raise a SourceError if the types of one of these columns do not unify."""
        for name in names:
            if name in self.conflicts:
                raise SourceError(self.conflicts[name])


def merge_schemas(
    schemas: Sequence[tuple[str, pa.Schema]], unify: Unify = unify_types, fix: str = _FIX
) -> MergedSchema:
    """Merge the schemas of files given as (path, schema).

    ``unify`` returns the type that holds the values of two types, or None. ``fix`` is the advice for columns
    whose types do not unify.

    >>> one, two = pa.schema([("x", pa.int32()), ("y", pa.string())]), pa.schema([("y", pa.int8())])
    >>> merged = merge_schemas([("a.parquet", one), ("b.parquet", two)])
    >>> merged.schema.names, list(merged.conflicts)
    (['x', 'y'], ['y'])
    """
    merged: dict[str, tuple[str, pa.Field[Any]]] = {}
    conflicts: dict[str, str] = {}
    for place, (path, schema) in enumerate(schemas):
        conflicts |= _find_duplicates(path, schema)
        for found in schema:
            name = found.name
            if name not in merged:
                # the files before lack it
                merged[name] = path, found if place == 0 else found.with_nullable(True)
                continue
            origin, known = merged[name]
            kind = unify(known.type, found.type)
            if kind is not None:
                widened = known.with_type(kind).with_nullable(known.nullable or found.nullable)
                merged[name] = (origin if kind == known.type else path, widened)
            elif name not in conflicts:
                conflicts[name] = (
                    f"column {name!r} is {found.type} in {path} but {known.type} in {origin}: {fix}"
                )
        for name in merged.keys() - set(schema.names):
            origin, known = merged[name]
            merged[name] = origin, known.with_nullable(True)
    return MergedSchema(pa.schema([known for _, known in merged.values()]), conflicts)


def unify_schemas(schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Unify schemas that must have the same columns, given as (name, schema), in the first one's column order."""
    (first_name, first), *others = schemas
    for name, schema in others:
        _check_same_columns(first_name, first, name, schema)
    merged = merge_schemas(schemas, fix="give them the same type")
    merged.check(merged.schema.names)
    return merged.schema


def _find_duplicates(path: str, schema: pa.Schema) -> dict[str, str]:
    duplicates = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    return {name: f"{path} has more than one column {name!r}: make names unique" for name in duplicates}


def _check_same_columns(first_path: str, first: pa.Schema, path: str, schema: pa.Schema) -> None:
    for here, there, where, other in ((first, schema, path, first_path), (schema, first, first_path, path)):
        names = set(there.names)
        for column in here:
            if column.name not in names:
                raise SourceError(
                    f"column {column.name!r} is missing in {where} but {column.type} in {other}: "
                    f"give all of them the same columns, or read them separately"
                )
