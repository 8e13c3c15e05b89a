"""JSON lines: split into ranges of lines, parsed by ``pyarrow.json``, with one type per column over all files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from windrow.core.empty_tables import empty_table
from windrow.core.errors import SourceError
from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.hive_partitions import find_partitions
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.line_ranges import LineFiles, LineFormat, parse_in_blocks
from windrow.io.formats.sampled_format import Head, estimate_facts
from windrow.io.formats.text_encoding import check_utf8
from windrow.io.formats.type_widening import unify_inferred, widen_json
from windrow.io.formats.user_types import type_names

__all__ = ["JsonFormat", "check_json_type"]

_COLUMN = re.compile(r"Column\(/([^/)]*)")


@dataclass(frozen=True)
class JsonFormat(LineFormat):
    """Files of JSON objects, one per line.

    ``dtypes`` are the user's types by column; ``given_schema`` states that they are those of ``schema=``, and that
    other keys are ignored. ``complete`` states that all columns are read, so that an unknown key is an error.
    """

    lines: LineFiles
    dtypes: Mapping[str, pa.DataType] | None = None
    given_schema: bool = False
    complete: bool = False
    name: str = "JSON"

    @property
    def options(self) -> str:
        """The options that affect values."""
        return f"{self.lines}, dtypes={type_names(self.dtypes)}"

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        """Unify the inferred types over all files; a column can be missing from some."""
        return unify_inferred(schemas, widen_json, fix="give dtypes=")

    def for_columns(self, schema: pa.Schema, stored: pa.Schema) -> JsonFormat:
        """The format that knows whether all columns are read."""
        complete = not self.given_schema and all(field in schema for field in stored)
        return replace(self, complete=complete)

    def parse(
        self, file: OpenFile, text: pa.Buffer, schema: pa.Schema, where: str, *, at_start: bool
    ) -> pa.Table:
        """Parse lines of JSON."""
        return _parse(text, schema, "error" if self.complete else "ignore")

    def explain(self, error: Exception, file: OpenFile, text: pa.Buffer, schema: pa.Schema) -> str:
        """Extend an error by the column's name, where it can be found, and a fix."""
        if isinstance(error, UnicodeError):
            return f"{error}; check encoding="
        if "unexpected field" in str(error):
            return (
                f"a key that is missing from the beginning of every file ({_find_unexpected(text, schema)}): give its "
                "type with dtypes=, or exclude it with columns="
            )
        named = _COLUMN.search(str(error))
        name = named[1] if named else _find_overflow(text, schema)
        if not name:
            return f"{error}; repair the file: each line must be one JSON object"
        if self.given_schema:
            return f"column {name!r}: {error}. schema= states its type: give another one, or repair the file"
        return (
            f"column {name!r}: {error}. Types are inferred from the beginning of files: give "
            f"dtypes={{{name!r}: ...}}, or repair the file"
        )

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        """Infer the columns from the objects in the head."""
        given = pa.schema(list((self.dtypes or {}).items()))
        try:
            sample = _parse(head.data, given, "infer")
        except (pa.ArrowException, UnicodeError) as error:
            what = "" if isinstance(error, UnicodeError) else " does not hold JSON lines"
            why = self.explain(error, file, head.data, given)
            raise SourceError(f"{file.name}{what}: {why}") from error
        if sample.num_rows and not sample.num_columns:
            raise SourceError(f"{file.name}: its objects have no keys; exclude the file")
        if self.given_schema:
            sample = _drop_partitions(sample, file.name)
        return estimate_facts(sample, head.data.size, self.lines.group_bytes(file, head))


def _drop_partitions(sample: pa.Table, path: str) -> pa.Table:
    """Drop the columns of which only the schema and a directory know."""
    keys = find_partitions([path], ()).schema.names
    return sample.drop_columns(
        [name for name in keys if name in sample.column_names and sample[name].null_count == sample.num_rows]
    )


def check_json_type(kind: pa.DataType) -> None:
    """Parse an empty object as a type; raises ``ArrowNotImplementedError`` if JSON does not support it."""
    _parse(pa.py_buffer(b"{}\n"), pa.schema({"x": kind}), "ignore")


def _parse(text: pa.Buffer, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse lines, single-threaded. ``unexpected``: infer or ignore keys that the schema lacks, or raise."""
    import pyarrow.json as json

    if not text.size:
        return empty_table(schema)
    # which Arrow's parser does not check
    check_utf8(text)
    parse_options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)

    def parse(block_bytes: int) -> pa.Table:
        read_options = json.ReadOptions(use_threads=False, block_size=block_bytes)
        return json.read_json(pa.BufferReader(text), read_options, parse_options)

    table = parse_in_blocks(text, parse)
    # Arrow returns no columns for blank lines alone
    return table if table.num_rows or len(table.schema) else empty_table(schema)


def _find_unexpected(text: pa.Buffer, schema: pa.Schema) -> str:
    try:
        found = _parse(text, schema, "infer").schema
    except pa.ArrowException:
        return "within an object"
    new = [name for name in found.names if name not in schema.names]
    return repr(new[0]) if new else "within an object"


def _find_overflow(text: pa.Buffer, schema: pa.Schema) -> str:
    """The column whose values alone do not fit; empty if there is no such column."""
    for field in schema:
        try:
            _parse(text, pa.schema([]), "ignore")
            _parse(text, pa.schema([field]), "ignore")
        except pa.ArrowInvalid as error:
            if "convert" in str(error):
                return str(field.name)
    return ""
