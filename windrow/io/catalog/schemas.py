"""Schemas: one for all files, merged column by column, and what a column that does not fit says.

Columns are matched by name, in any order. The types of a column unify by widening (`unify_types`); a column
that some schemas lack is nullable. A column whose types do not unify stays in the merged schema, as the first
file has it, with an error that selecting it raises: unselected columns need not agree.

The first file determines the column order and the field metadata; columns that only later files have follow.
Schema metadata (such as pandas' index) is dropped, since it describes one file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.io.catalog.unified_types import unify_types

__all__ = ["MergedSchema", "Unify", "merge_schemas", "unify_schemas"]

Unify = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]

_FIX = (
    "give all files the same type, give one that holds both with schema=, or exclude the column with columns="
)


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

    Examples
    --------
    >>> import pyarrow as pa
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
