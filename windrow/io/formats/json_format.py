"""JSON files: lines, split into ranges, or one array; parsed by ``pyarrow.json``, with one type per column.

Types are the user's, or inferred from the beginning of every file and unified over all files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from windrow.core.arrow_support import empty_table
from windrow.core.errors import SourceError
from windrow.io.catalog.hive_partitions import find_partitions
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.file_encodings import check_utf8
from windrow.io.formats.inferred_types import type_names, unify_inferred, widen_json
from windrow.io.formats.json_arrays import array_head, array_lines, is_array
from windrow.io.formats.json_values import find_rounded, has_text, quote_values, widen_integers
from windrow.io.formats.line_formats import (
    BLOCK_BYTES,
    LineFiles,
    LineFormat,
    Piece,
    cut_lines,
    parse_in_blocks,
)
from windrow.io.formats.row_group_format import Head, estimate_facts

_COLUMN = re.compile(r"Column\(/([^/)]*)")
_ROW = re.compile(r" in row (\d+)")
_QUOTED = re.compile(r"couldn't parse:(\S+)")
_CONFLICT_FIX = (
    "give a type that holds both with dtypes=, such as pa.string(), which keeps the JSON text of other values; or "
    "exclude the column with columns="
)


@dataclass(frozen=True)
class JsonFormat(LineFormat):
    """Files of JSON objects, one per line or in one array.

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
        return f"{self.lines}, dtypes={type_names(self.dtypes)}"

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        return unify_inferred(schemas, widen_json, fix="give dtypes=", conflict_fix=_CONFLICT_FIX)

    def for_columns(self, schema: pa.Schema, stored: pa.Schema) -> JsonFormat:
        complete = not self.given_schema and all(field in schema for field in stored)
        return replace(self, complete=complete)

    def heads(self, file: OpenFile) -> Iterator[Head]:
        """Yield ever longer heads of a file as JSON lines: whole lines, or whole elements of an array."""
        for head in self.lines.heads(file):
            if is_array(head.data):
                yield _read_array_head(file, head)
            else:
                yield cut_lines(head)

    def texts(self, file: OpenFile, start: int, stop: int) -> Iterator[pa.Buffer]:
        """Read JSON lines; the elements of an array, which is one row group, in pieces."""
        text = self.lines.read(file, start, stop)
        if start or not is_array(text):
            yield text
        else:
            yield from array_lines(self.lines.read_whole(file))

    def parse(self, piece: Piece, schema: pa.Schema) -> pa.Table:
        """Parse lines of JSON; a SourceError names an integer that the column's floats do not hold."""
        table = self._parse(piece.text, schema, "error" if self.complete else "ignore")
        self._check_rounded(piece.text, table, piece.where, piece.first_row)
        return table

    def explain(self, error: Exception, piece: Piece, schema: pa.Schema) -> str:
        """Extend an error by the column's name and the row, where they can be found, and a fix."""
        if isinstance(error, UnicodeError):
            return f"{error}; check encoding="
        if "unexpected field" in str(error):
            return (
                f"a key that is missing from the beginning of every file ({_find_unexpected(piece.text, schema)}): "
                "give its type with dtypes=, or exclude it with columns="
            )
        shown = _show(error, piece)
        if "changed from object to" in shown and "Column()" in shown:
            return (
                f"{shown}; repair the file: each line, or each element of its array, must be one JSON object"
            )
        named = _COLUMN.search(shown)
        name = named[1] if named else _find_overflow(piece.text, schema)
        if not name:
            return f"{shown}; repair the file: each line must be one JSON object"
        what = f"column {name!r}{_find_row(error, piece)}: {shown}"
        if self.given_schema:
            return f"{what}. schema= states its type: give another one, or repair the file"
        if "changed from" in str(error):
            return (
                f"{what}. The values are of several kinds: give dtypes={{{name!r}: pa.string()}} to read them as text "
                "(strings as they are, others as their JSON text), give dtypes= with pa.string() for the field "
                "within, or repair the file"
            )
        return (
            f"{what}. Types are inferred from the beginning of files: give "
            f"dtypes={{{name!r}: ...}}, or repair the file"
        )

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        given = pa.schema(list((self.dtypes or {}).items()))
        try:
            sample = self._parse(head.data, given, "infer")
            inferred = widen_integers(head.data, sample, given.names)
            if inferred != sample.schema:
                sample = self._parse(head.data, inferred, "infer")
        except (pa.ArrowException, UnicodeError) as error:
            what = "" if isinstance(error, UnicodeError) else " does not hold JSON as described"
            why = self.explain(error, Piece(file, head.data, file.name), given)
            raise SourceError(f"{file.name}{what}: {why}") from error
        self._check_rounded(head.data, sample, file.name, 0)
        if sample.num_rows and not sample.num_columns:
            raise SourceError(f"{file.name}: its objects have no keys; exclude the file")
        if self.given_schema:
            sample = _drop_partitions(sample, file.name)
        is_whole = isinstance(head, _ArrayHead)
        groups = [head.content_bytes] if is_whole else self.lines.group_bytes(file, head)
        return estimate_facts(sample, head.data.size, groups)

    def _parse(self, text: pa.Buffer, schema: pa.Schema, unexpected: str) -> pa.Table:
        """Parse lines; fields that ``dtypes`` gives as strings hold the text of other values."""
        try:
            return _parse(text, schema, unexpected)
        except pa.ArrowInvalid as error:
            given = {field.name: field.type for field in schema if field.name in (self.dtypes or {})}
            if "changed from" not in str(error) or not any(map(has_text, given.values())):
                raise
            return _parse(quote_values(text, given), schema, unexpected)

    def _check_rounded(self, text: pa.Buffer, table: pa.Table, where: str, first_row: int) -> None:
        found = find_rounded(text, table, self.dtypes or ())
        if found is not None:
            name = found.column
            raise SourceError(
                f"{where}, row {first_row + found.row:,}: column {name!r} is inferred as floats, which cannot hold the "
                f"integer {found.value}: give dtypes={{{name!r}: ...}} with a type that holds it, such as pa.uint64(), "
                "pa.decimal128(38), pa.string() for its digits, or pa.float64() to round it"
            )


@dataclass(frozen=True, eq=False)
class _ArrayHead(Head):
    """The first elements of an array, as JSON lines; the whole array is one row group."""


def _read_array_head(file: OpenFile, head: Head) -> _ArrayHead:
    try:
        lines = array_head(head.data, whole=head.whole)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{file.name} does not hold a JSON array: {error}; repair the file") from error
    return _ArrayHead(lines, head.whole, head.content_bytes)


def _show(error: Exception, piece: Piece) -> str:
    """The text of an error; Arrow counts rows within its blocks, so only those of the first one are known."""
    is_first = piece.text.size <= BLOCK_BYTES
    return _ROW.sub(
        lambda found: f" in row {piece.first_row + int(found[1]):,}" if is_first else "", str(error)
    )


def _find_row(error: Exception, piece: Piece) -> str:
    """Name the first row with the number that an error quotes."""
    quoted = _QUOTED.search(str(error))
    if quoted is None:
        return ""
    number = re.compile(rb"(?<![\w.+-])" + re.escape(quoted[1].encode()) + rb"(?![\w.])")
    rows = (line for line in bytes(piece.text).splitlines() if line.strip())
    row = next((row for row, line in enumerate(rows) if number.search(line)), None)
    return "" if row is None else f", row {piece.first_row + row:,}"


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
