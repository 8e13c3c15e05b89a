"""Avro schemas, as fastavro parses them: the Arrow type of each column, and schemas that decode to what Arrow takes.

==========================================  ==================================================
Avro                                        Arrow
==========================================  ==================================================
``null``, ``boolean``, ``int``, ``long``    ``null``, ``bool``, ``int32``, ``int64``
``float``, ``double``                       ``float``, ``double``
``string``, ``enum``, ``uuid`` as string    ``string``
``bytes``, ``fixed``                        ``binary``, ``fixed_size_binary``
``array``, ``map``, ``record``              ``list``, ``map`` from strings, ``struct``
union with ``null``                         nullable
union of numbers                            the type that holds all of them
``date``, ``time-*``                        ``date32``, ``time32``, ``time64``
``timestamp-*``, ``local-timestamp-*``      ``timestamp`` in UTC, and without a time zone
``decimal``                                 ``decimal128``, ``decimal256``
==========================================  ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.io.catalog.schemas import unify_types

Schemas = Mapping[str, Any]
"""Definitions of named types: records, enums and fixed."""

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{prefix}timestamp-{name}"): pa.timestamp(unit, zone)
        for prefix, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
_NAMED = ("record", "error", "enum", "fixed")
# digits of the widest decimals
_DECIMALS = ((38, pa.decimal128), (76, pa.decimal256))


class UnsupportedAvroError(Exception):
    """A type has no equivalent in Arrow; ``kind`` names it in a word, and the text continues "it is"."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def arrow_field(name: str, schema: Any, named: Schemas, within: tuple[str, ...] = ()) -> pa.Field[Any]:
    """Return the Arrow field of a type; an `UnsupportedAvroError` if there is none.

    ``within`` are the records that contain it.

    >>> arrow_field("x", ["null", {"type": "int", "logicalType": "date"}], {})
    pyarrow.Field<x: date32[day]>
    >>> arrow_field("x", {"type": "array", "items": "string"}, {}).type
    ListType(list<item: string not null>)
    """
    branches = [
        "null" if branch == {"type": "null"} else branch
        for branch in (schema if isinstance(schema, list) else [schema])
    ]
    kinds = [_arrow_type(branch, named, within) for branch in branches if branch != "null"]
    nullable = "null" in branches
    if len(kinds) < 2:
        return pa.field(name, kinds[0] if kinds else pa.null(), nullable)
    if not all(pt.is_integer(kind) or pt.is_floating(kind) for kind in kinds):
        shown = ", ".join(map(_name_branch, branches))
        raise UnsupportedAvroError("union", f"a union of {shown}, and a column has one type")
    return pa.field(name, reduce(_unify_numbers, kinds), nullable)


def _unify_numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    kind = unify_types(left, right)
    assert kind is not None, "a double holds every number of Avro, or casting is an error"
    return kind


def _name_branch(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    return str(schema.get("logicalType") or schema.get("name") or schema["type"])


def _arrow_type(schema: Any, named: Schemas, within: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in within:
            raise UnsupportedAvroError(
                "recursive", f"a recursive type, {schema!r}, and Arrow's types are finite"
            )
        schema = named[schema]
    kind = schema["type"]
    if not isinstance(kind, str):
        return arrow_field("", kind, named, within).type
    if schema.get("logicalType") == "decimal":
        return _decimal_type(schema)
    logical = _LOGICAL.get((kind, schema.get("logicalType")))
    if logical is not None:
        return logical
    if kind == "array":
        return pa.list_(arrow_field("item", schema["items"], named, within))
    if kind == "map":
        return pa.map_(pa.string(), arrow_field("value", schema["values"], named, within))
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return pa.binary(schema["size"])
    if kind in ("record", "error"):
        inside = (*within, schema["name"])
        return pa.struct(
            [arrow_field(part["name"], part["type"], named, inside) for part in schema["fields"]]
        )
    return _arrow_type(kind, named, within)


def _decimal_type(schema: Any) -> pa.DataType:
    digits, scale = int(schema["precision"]), int(schema.get("scale", 0))
    for most, make in _DECIMALS:
        if digits <= most:
            return make(digits, scale)
    raise UnsupportedAvroError("decimal", f"a decimal of {digits} digits, and Arrow's have 76 at most")


def plain_schema(schema: Any, named: Schemas, defined: set[str]) -> Any:
    """Return a type without logical types, defaults and documentation.

    A named type is defined where it first occurs; ``defined`` are those that occurred before.

    >>> plain_schema({"type": "array", "items": {"type": "int", "logicalType": "date"}}, {}, set())
    {'type': 'array', 'items': 'int'}
    """
    if isinstance(schema, list):
        return [plain_schema(branch, named, defined) for branch in schema]
    if isinstance(schema, str):
        if schema in _PRIMITIVES or schema in defined:
            return schema
        schema = named[schema]
    kind = schema["type"]
    for part in ("items", "values"):
        if kind == {"items": "array", "values": "map"}[part]:
            return {"type": kind, part: plain_schema(schema[part], named, defined)}
    if not isinstance(kind, str) or kind not in _NAMED:
        return plain_schema(kind, named, defined)
    name = schema["name"]
    if name in defined:
        return name
    defined.add(name)
    if kind == "fixed":
        return {"type": kind, "name": name, "size": schema["size"]}
    if kind == "enum":
        return {"type": kind, "name": name, "symbols": schema["symbols"]}
    fields = [
        {"name": part["name"], "type": plain_schema(part["type"], named, defined)}
        for part in schema["fields"]
    ]
    return {"type": "record", "name": name, "fields": fields}


def make_converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    r"""Return the function that makes of a decoded value, not None, what ``pa.array`` takes; None: nothing to do.

    Maps become pairs, and the bytes of decimals `Decimal`.

    >>> make_converter(pa.list_(pa.decimal128(4, 2)))([b"\x01\x00", None])
    [Decimal('2.56'), None]
    """
    if pt.is_decimal(kind):
        scale = kind.scale
        # from text, since arithmetic rounds to the digits of the thread's context
        return lambda stored: Decimal(f"{int.from_bytes(stored, 'big', signed=True)}E{-scale}")
    if pt.is_list(kind):
        of_items = make_converter(kind.value_type)
        return None if of_items is None else lambda items: [_convert(of_items, item) for item in items]
    if pt.is_map(kind):
        of_values = make_converter(kind.item_type)
        if of_values is None:
            return lambda pairs: list(pairs.items())
        return lambda pairs: [(key, _convert(of_values, item)) for key, item in pairs.items()]
    if pt.is_struct(kind):
        parts = {part.name: make_converter(part.type) for part in kind}
        changed = [(name, convert) for name, convert in parts.items() if convert is not None]
        if not changed:
            return None
        return lambda row: {**row, **{name: _convert(convert, row[name]) for name, convert in changed}}
    return None


def _convert(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def make_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert decoded values to a column."""
    convert = make_converter(kind)
    return pa.array(values if convert is None else [_convert(convert, value) for value in values], kind)
