"""Hive partitions: columns whose values come from directory names, ``key=value``, both URL-decoded.

A column is ``int32`` if all its values are integers that fit, else ``int64`` if they fit that, else
``string``. ``__HIVE_DEFAULT_PARTITION__`` and an absent key are null. A key that is also a column of every
file is ignored: the stored column is read. Where only some files store it, the directories state it for all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from windrow.core.errors import PlanError, SourceError
from windrow.io.catalog.safe_casts import Locate, cast_array, cast_table
from windrow.io.storage.filesystems import join_path

if TYPE_CHECKING:
    import pyarrow.compute as pc

Value = Any

PATH_COLUMN = "path"

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)


@dataclass(frozen=True)
class Partitions:
    """The columns derived from paths, and their values for a path."""

    schema: pa.Schema
    path_column: str = ""  # the column of the path itself; empty for none
    url: str = ""  # what relative paths start with
    directory_column: str = ""  # the column of the name of each file's directory; empty for none

    def with_paths(self, url: str, file_columns: Collection[str]) -> Partitions:
        """Add a column of file paths; a `PlanError` if there is one of its name."""
        if PATH_COLUMN in (*file_columns, *self.schema.names):
            raise PlanError(f"include_paths=True: there is a column {PATH_COLUMN!r} already; rename it")
        schema = self.schema.append(pa.field(PATH_COLUMN, pa.string()))
        return replace(self, schema=schema, path_column=PATH_COLUMN, url=url)

    def with_directories(self, name: str, url: str, file_columns: Collection[str]) -> Partitions:
        """Add a column of directory names; a `PlanError` if there is one of its name."""
        if not isinstance(name, str) or not name or name in (*file_columns, *self.schema.names):
            raise PlanError(f"directory_column={name!r} must be a name that no other column has")
        schema = self.schema.append(pa.field(name, pa.string()))
        return replace(self, schema=schema, directory_column=name, url=url)

    def with_types(self, given: pa.Schema | None) -> Partitions:
        """The columns with the types of ``schema=``, where that names them."""
        types = {} if given is None else {field.name: field.type for field in given}
        fields = [field.with_type(types.get(field.name, field.type)) for field in self.schema]
        return replace(self, schema=pa.schema(fields))

    def values(self, path: str) -> tuple[Value, ...]:
        """The value of each column for a relative path."""
        parent = path.rpartition("/")[0] or self.url.rpartition("://")[2].rstrip("/")
        directory = parent.rpartition("/")[2]
        from_path = {self.path_column: join_path(self.url, path), self.directory_column: directory or None}
        found: dict[str, str | None] = {**_parse(path), **from_path}
        texts = ((field.type, found.get(field.name)) for field in self.schema)
        return tuple(None if text is None else _parse_value(text, kind, path) for kind, text in texts)

    def table(self, paths: Sequence[str]) -> pa.Table:
        """(paths,) rows of partition values, to evaluate a filter on fragments."""
        if self.path_column:
            rows = [self.values(path) for path in paths]
        else:
            directories = [path.rpartition("/")[0] for path in paths]
            known = {directory: self.values(f"{directory}/") for directory in set(directories)}
            rows = [known[directory] for directory in directories]
        return self.to_table(rows)

    def to_table(self, rows: Sequence[tuple[Value, ...]]) -> pa.Table:
        """A table of some rows of values."""
        columns = [
            pa.array([row[place] for row in rows], field.type) for place, field in enumerate(self.schema)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def expression(self, path: str) -> pc.Expression:
        """The partition expression of a path, for Arrow's datasets."""
        import pyarrow.compute as pc

        guarantee = pc.scalar(True)
        for field, value in zip(self.schema, self.values(path), strict=True):
            column = pc.field(field.name)
            known = column.is_null() if value is None else column == pa.scalar(value, field.type)
            guarantee = guarantee & known
        return guarantee


def find_partitions(paths: Iterable[str], file_columns: Collection[str]) -> Partitions:
    """Find the partition columns in relative paths, in order of appearance."""
    seen: dict[str, set[str | None]] = {}
    directories = {path.rpartition("/")[0]: path for path in paths}
    for path in directories.values():
        for key, value in _parse(path).items():
            seen.setdefault(key, set()).add(value)
    kept = {key: values for key, values in seen.items() if key not in file_columns}
    return Partitions(pa.schema([pa.field(key, _infer(values)) for key, values in kept.items()]))


def _parse(path: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for segment in path.split("/")[:-1]:
        key, equals, text = segment.partition("=")
        if not equals or not key:
            continue
        name, value = unquote(key), None if text == _NULL else unquote(text)
        if found.setdefault(name, value) != value:
            raise SourceError(f"{path} names the partition {name!r} twice: use partitioning=None")
    return found


def _infer(values: Iterable[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    if not known or not all(_INTEGER.fullmatch(value) for value in known):
        return pa.string()
    widest = max((int(value) for value in known), key=lambda number: number if number >= 0 else ~number)
    bits = (widest if widest >= 0 else ~widest).bit_length()
    return pa.int32() if bits < 32 else pa.int64() if bits < 64 else pa.string()


def _repeat(value: Value, kind: Any, rows: int) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return cast_array(_repeat(value, kind.value_type, rows), kind)
    return pa.repeat(pa.scalar(value, kind), rows)


def _parse_value(text: str, kind: pa.DataType, path: str) -> Value:
    if kind == pa.string():
        return text
    if kind in (pa.int32(), pa.int64()) and _INTEGER.fullmatch(text):
        return int(text)
    try:
        return pa.scalar(text).cast(kind).as_py()
    except pa.ArrowException as error:
        raise SourceError(
            f"{path}: its directory states {text!r}, which is not a {kind} ({error}): give another type in schema="
        ) from error


def conform(
    table: pa.Table, schema: pa.Schema, partitions: Partitions, path: str, locate: Locate
) -> pa.Table:
    """Cast the table of the file at ``path`` to ``schema``, and add its partition columns.

    Columns that the table lacks are null. ``locate`` names the place of a row in errors.
    """
    values = dict(zip(partitions.schema.names, partitions.values(path), strict=True))
    stored = cast_table(table, pa.schema([field for field in schema if field.name not in values]), locate)
    columns = [
        pa.chunked_array([_repeat(values[field.name], field.type, table.num_rows)])
        if field.name in values
        else stored.column(field.name)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
