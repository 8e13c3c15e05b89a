"""JSON lines: ``pyarrow.json`` on ranges of lines, with one type for each column of all files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.core.empty_tables import empty_table
from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.fragments import Fragment, FragmentFacts
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.file_head import Head, look_at
from windrow.io.formats.line_ranges import LineFiles, cut_lines
from windrow.io.formats.row_estimate import estimate_facts
from windrow.io.formats.table_reader import TableReader
from windrow.io.formats.text_encoding import check_utf8
from windrow.io.formats.type_widening import unify_inferred, widen_json
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["JsonFormat", "parse_no_json"]

# Arrow parses block by block, and a line has to fit into one.
_BLOCK_BYTES = 2**20
_LARGEST_BYTES = 2**31 - 1
_COLUMN = re.compile(r"Column\(/([^/)]*)")


@dataclass(frozen=True)
class JsonFormat:
    """Files of one JSON object a line.

    Attributes
    ----------
    lines
        How their lines are stored.
    dtypes
        The types that the user gave, by column.
    complete
        Whether all columns are read, so that a key that is none of them is an error.
    """

    lines: LineFiles
    dtypes: Mapping[str, pa.DataType] | None = None
    complete: bool = False
    name: str = "JSON"
    rows_known: bool = False
    joins_files: bool = False

    @property
    def options(self) -> str:
        """What changes values."""
        return f"{self.lines}, dtypes={ {name: str(kind) for name, kind in (self.dtypes or {}).items()} }"

    def look(self, files: Files, path: str) -> Fragment:
        """Infer the types of a file's columns from its beginning.

        Raises
        ------
        SourceError
            If it cannot be read, or does not hold JSON lines.
        """
        return look_at(files, path, self._summarise)

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
        """One type for each column of all files, which may be missing in some."""
        return unify_inferred(schemas, widen_json, fill=True, fix="give dtypes=")

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableReader:
        """A reader of blocks, each of one file."""
        complete = set(stored.names) <= set(schema.names)
        return TableReader(replace(self, complete=complete), files, schema, stored, partitions, row_filter)

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read ranges of a file as a table; raises a `CorruptBlockError` for values that do not fit."""
        self.lines.fetch(file, start, stop, head=False)
        where = self.lines.where(file, start, stop)
        unexpected = "error" if self.complete else "ignore"
        try:
            text = self.lines.read(file, start, stop)
            return _parse(text, schema, unexpected)
        except UnicodeError as error:
            raise CorruptBlockError(f"{where}: {error}; see whether encoding= is right") from error
        except pa.ArrowException as error:
            if file.failed:
                raise
            raise CorruptBlockError(f"{where}: {_explain(error, text, schema)}") from error

    def maps(self, schema: pa.Schema) -> bool:
        """Yes: what is parsed is a copy."""
        return True

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read range by range, so that little text is held."""
        for group in range(start, stop):
            yield self.read(file, group, group + 1, schema)

    def _summarise(self, file: OpenFile) -> FragmentFacts:
        for head, text in self.lines.heads(file):
            facts = self._describe(file, head, text if head.whole else cut_lines(text))
            if facts.rows or head.whole:
                return facts
        raise AssertionError("the last head is the whole file")

    def _describe(self, file: OpenFile, head: Head, text: pa.Buffer) -> FragmentFacts:
        """What some rows from the beginning of a file tell of it."""
        given = pa.schema(list((self.dtypes or {}).items()))
        try:
            sample = _parse(text, given, "infer")
        except UnicodeError as error:
            raise SourceError(f"{file.name}: {error}; see whether encoding= is right") from error
        except pa.ArrowException as error:
            raise SourceError(f"{file.name} holds no JSON lines: {_explain(error, text, given)}") from error
        if sample.num_rows and not sample.num_columns:
            raise SourceError(f"{file.name}: its objects have no keys; leave the file out")
        return estimate_facts(sample, text.size, self.lines.group_bytes(file, head))


def parse_no_json(kind: pa.DataType) -> None:
    """Parse an empty object as a type; raises an ``ArrowNotImplementedError`` if JSON has none."""
    _parse_blocks(pa.py_buffer(b"{}\n"), pa.schema({"x": kind}), "ignore", _BLOCK_BYTES)


def _parse(text: pa.Buffer, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse lines, single-threaded; keys that the schema lacks are inferred, ignored, or an error.

    Raises
    ------
    UnicodeDecodeError
        If they are no UTF-8, which Arrow's parser does not look at.
    """
    if not text.size:
        return empty_table(schema)
    check_utf8(text)
    try:
        return _parse_blocks(text, schema, unexpected, _BLOCK_BYTES)
    except pa.ArrowInvalid as error:
        if "straddling" not in str(error):
            raise
        return _parse_blocks(text, schema, unexpected, min(text.size, _LARGEST_BYTES))


def _parse_blocks(text: pa.Buffer, schema: pa.Schema, unexpected: str, block_bytes: int) -> pa.Table:
    import pyarrow.json as json

    table = json.read_json(
        pa.BufferReader(text),
        read_options=json.ReadOptions(use_threads=False, block_size=block_bytes),
        parse_options=json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    # blank lines alone give no columns
    return table if table.num_rows or len(table.schema) else empty_table(schema)


def _explain(error: Exception, text: pa.Buffer, schema: pa.Schema) -> str:
    """An error of Arrow's with the column where it can be found, and what to do."""
    if "unexpected field" in str(error):
        return (
            f"a key that the beginning of no file has ({_find_unexpected(text, schema)}): give its type with "
            "dtypes=, or leave it out with columns="
        )
    named = _COLUMN.search(str(error))
    name = named[1] if named else _find_overflow(text, schema)
    if not name:
        return f"{error}; repair the file: each line must be one JSON object"
    return (
        f"column {name!r}: {error}. Types are inferred from the beginning of files: give "
        f"dtypes={{{name!r}: ...}}, or repair the file"
    )


def _find_unexpected(text: pa.Buffer, schema: pa.Schema) -> str:
    try:
        found = _parse(text, schema, "infer").schema
    except pa.ArrowException:
        return "within an object"
    new = [name for name in found.names if name not in schema.names]
    return repr(new[0]) if new else "within an object"


def _find_overflow(text: pa.Buffer, schema: pa.Schema) -> str:
    """The column whose values do not fit, if it is any one's fault."""
    for field in schema:
        try:
            _parse(text, pa.schema([]), "ignore")
            _parse(text, pa.schema([field]), "ignore")
        except pa.ArrowInvalid as error:
            if "convert" in str(error):
                return str(field.name)
    return ""
