"""The columns of a dataset: those that ``columns=`` and ``schema=`` name, and how they fit those of the files."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import PlanError
from windrow.io.catalog.manifest import Manifest
from windrow.io.catalog.safe_casts import has_cast
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.catalog.value_sizes import is_list

_NAMES_SHOWN = 3
# what the steps from a list to its items are called in Parquet and Arrow
_ITEM_STEPS = ("list.element", "list.item")

# names of the selected fields below a column or field; None selects all of it
_Fields = Mapping[str, Any]


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of the selected columns, in the given order; all columns for None.

    ``"s.a"`` selects the field ``a`` of the struct ``s`` unless a column has that name, and the columns that it
    is selected with become one struct. ``"l.list.element.a"`` selects a field of the structs in a list.

    >>> schema = pa.schema([("s", pa.struct([("a", pa.int8()), ("b", pa.int8())])), ("x", pa.int8())])
    >>> select_columns(schema, ["x", "s.b"])
    x: int8
    s: struct<b: int8>
      child 0, b: int8
    """
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
    selected: dict[str, Any] = {}
    for name in columns:
        path = _find_path(schema, name)
        if path is None:
            raise _make_unknown_path_error(name, schema)
        _add_path(selected, path)
    return pa.schema([_prune(schema.field(name), fields) for name, fields in selected.items()])


def _find_path(fields: Any, name: str) -> tuple[str, ...] | None:
    """The steps from a column, or a field of ``fields``, that a dotted name describes; the longest name first."""
    known = {field.name: field for field in fields}
    if name in known:
        return (name,)
    cuts = [place for place, letter in enumerate(name) if letter == "."]
    for cut in reversed(cuts):
        head, rest = name[:cut], name[cut + 1 :]
        if head in known:
            below = _find_below(known[head].type, rest)
            if below is not None:
                return (head, *below)
    return None


def _find_below(kind: Any, rest: str) -> tuple[str, ...] | None:
    if is_list(kind):
        for step in _ITEM_STEPS:
            if rest == step:
                return ()
            if rest.startswith(f"{step}."):
                return _find_below(kind.value_type, rest[len(step) + 1 :])
        return None
    return _find_path(kind, rest) if pt.is_struct(kind) else None


def _add_path(selected: dict[str, Any], path: Sequence[str]) -> None:
    head, *rest = path
    if not rest or selected.get(head, {}) is None:
        selected[head] = None
    else:
        _add_path(selected.setdefault(head, {}), rest)


def _prune(field: pa.Field[Any], fields: _Fields | None) -> pa.Field[Any]:
    return field if fields is None else field.with_type(_prune_type(field.type, fields))


def _prune_type(kind: Any, fields: _Fields) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([_prune(field, fields[field.name]) for field in kind if field.name in fields])
    return _list_like(kind, kind.value_field.with_type(_prune_type(kind.value_type, fields)))


def check_schema_argument(schema: Any) -> pa.Schema | None:
    """Return the argument ``schema=`` of a reader; a PlanError if it is not an Arrow schema of distinct names."""
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema):
        raise PlanError(
            f"schema= is a {type(schema).__name__}: give a pyarrow.Schema, such as pa.schema([('x', pa.int64())])"
        )
    if not len(schema):
        raise PlanError("schema= has no columns: name at least one, or leave it out")
    duplicates = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if duplicates:
        raise PlanError(f"schema= names {duplicates[0]!r} more than once: name each column once")
    return schema.remove_metadata()


@dataclass(frozen=True)
class FileColumns:
    """The columns that a dataset of files can have."""

    stored: pa.Schema  # those of files, in the types that they are read in, without those that conflict
    selectable: pa.Schema  # all that ``columns=`` can name: with ``schema=``, its columns
    merged: MergedSchema  # those of files

    def check(self, selected: pa.Schema, partitions: Collection[str]) -> None:
        """Raise a SourceError if the types of a selected column do not unify, and nothing else decides its type."""
        readable = {*self.stored.names, *partitions}
        self.merged.check(name for name in selected.names if name not in readable)


def find_columns(
    merged: MergedSchema,
    partitions: pa.Schema,
    given: pa.Schema | None,
    files: Sequence[tuple[str, pa.Schema]],
    added: Collection[str] = (),
) -> FileColumns:
    """Find the columns that can be selected, and their types.

    ``given`` is the argument ``schema=``, ``files`` are distinct schemas of files with a file's name each, and
    ``added`` the columns that other arguments add to those of ``schema=``.

    A column of ``schema=`` that no file has is an error: it would be null in every row, which is rarely meant and
    not noticed, as when a name is misspelt.
    """
    in_files = pa.schema([field for field in merged.schema if field.name not in partitions.names])
    if given is None:
        stored = pa.schema([field for field in in_files if field.name not in merged.conflicts])
        return FileColumns(stored, pa.schema([*in_files, *partitions]), merged)
    everything = pa.schema([*in_files, *partitions])
    for field in given:
        if field.name not in everything.names:
            raise make_unknown_column_error(field.name, everything.names, "schema=", "no file has it")
        if field.name in in_files.names:
            _check_casts(field, files)
    types = {field.name: field.type for field in given}
    stored = pa.schema(
        [
            field.with_type(types.get(field.name, field.type))
            for field in in_files
            if field.name in types or field.name not in merged.conflicts
        ]
    )
    typed = pa.schema([*stored, *partitions])
    names = [*given.names, *(name for name in added if name not in types)]
    return FileColumns(stored, pa.schema([typed.field(name) for name in names]), merged)


def _check_casts(field: pa.Field[Any], files: Sequence[tuple[str, pa.Schema]]) -> None:
    for path, schema in files:
        place = schema.get_field_index(field.name)
        if place >= 0 and not has_cast(schema.field(place).type, field.type):
            raise PlanError(
                f"schema= gives {field.type} for {field.name!r}, which is {schema.field(place).type} in {path} and "
                "cannot be cast to it: give another type"
            )


def _list_like(kind: Any, inner: pa.Field[Any]) -> pa.DataType:
    if pt.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pt.is_large_list(kind) else pa.list_(inner)


def _make_unknown_path_error(name: str, schema: pa.Schema) -> PlanError:
    """Name the fields of the struct that a dotted name goes through, else the columns."""
    column, dot, _rest = name.partition(".")
    if dot and column in schema.names:
        kind = schema.field(column).type
        if pt.is_struct(kind):
            fields = [f"{column}.{field.name}" for field in kind]
            return make_unknown_column_error(name, fields, "columns=")
        if is_list(kind) and pt.is_struct(kind.value_type):
            fields = [f"{column}.{_ITEM_STEPS[0]}.{field.name}" for field in kind.value_type]
            return make_unknown_column_error(name, fields, "columns=")
        return PlanError(
            f"columns= names {name!r}, but {column!r} is {kind} and has no fields: name {column!r}"
        )
    return make_unknown_column_error(name, schema.names, "columns=")


def make_unknown_column_error(name: str, known: Sequence[str], where: str, why: str = "") -> PlanError:
    """Return the error for an unknown column, with the most similar names."""
    what = f"{where} has a column {name!r}, but {why}" if why else f"{where} has no column {name!r}"
    by_casefold = {other.casefold(): other for other in reversed(known)}
    near = difflib.get_close_matches(name.casefold(), by_casefold, _NAMES_SHOWN, cutoff=0.5)
    if near:
        return PlanError(f"{what}: did you mean {_format_names([by_casefold[other] for other in near])}?")
    more = ", ..." if len(known) > 2 * _NAMES_SHOWN else ""
    return PlanError(f"{what}: there are {_format_names(known[: 2 * _NAMES_SHOWN])}{more}")


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)


def restrict_type(stored: Any, kind: Any) -> Any:
    """A stored type without the fields of structs that ``kind`` lacks.

    >>> restrict_type(pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.struct([("b", pa.int64())]))
    StructType(struct<b: int8>)
    """
    if pt.is_struct(stored) and pt.is_struct(kind):
        known = {field.name: field.type for field in kind}
        fields = [field for field in stored if field.name in known]
        return pa.struct([field.with_type(restrict_type(field.type, known[field.name])) for field in fields])
    if not (is_list(stored) and is_list(kind)):
        return stored
    inner = stored.value_field.with_type(restrict_type(stored.value_type, kind.value_type))
    return _list_like(stored, inner)


def describe_changes(manifest: Manifest, schema: pa.Schema, partitions: Collection[str]) -> tuple[str, ...]:
    """One text for each column of ``schema`` that is cast or filled: ``x: int32 in 2 of 9 files, read as double``."""
    numbers = manifest.schema_numbers
    if numbers is None:
        numbers = np.zeros(manifest.fragments, np.int64)
    counts = np.bincount(numbers, minlength=1).tolist()
    schemas = manifest.schemas or (manifest.schema,)
    stored = [field for field in schema if field.name not in partitions]
    found = ((field.name, list(_describe(field, schemas, counts, manifest, numbers))) for field in stored)
    return tuple(f"{name}: {', '.join(texts)}" for name, texts in found if texts)


def _describe(
    field: pa.Field,
    schemas: tuple[pa.Schema, ...],
    counts: list[int],
    manifest: Manifest,
    numbers: np.ndarray,
) -> Iterator[str]:
    kinds = [_stored_type(schema, field) for schema in schemas]
    for kind in dict.fromkeys(kinds):
        if kind is not None and kind != field.type:
            files = sum(count for known, count in zip(kinds, counts, strict=True) if known == kind)
            yield f"{kind} in {_of_files(files, manifest)}, read as {field.type}"
    lacking = [number for number, kind in enumerate(kinds) if kind is None and counts[number]]
    if lacking:
        files = sum(counts[number] for number in lacking)
        first = manifest.path(int(np.isin(numbers, lacking).argmax()))
        yield f"null in {_of_files(files, manifest)} (first: {first})"


def _stored_type(schema: pa.Schema, field: pa.Field) -> pa.DataType | None:
    place = schema.get_field_index(field.name)
    return restrict_type(schema.field(place).type, field.type) if place >= 0 else None


def _of_files(files: int, manifest: Manifest) -> str:
    if files == manifest.fragments:
        return "all files" if files > 1 else "the file"
    return f"{files:,} of {manifest.fragments:,} files"
