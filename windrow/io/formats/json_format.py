"""JSON lines: split into ranges of lines, parsed by ``pyarrow.json``, with one type per column over all files."""

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

__all__ = ["JsonFormat", "check_json_type"]

# Arrow parses in blocks, and each line must fit into one block.
_BLOCK_BYTES = 2**20
_LARGEST_BYTES = 2**31 - 1
_COLUMN = re.compile(r"Column\(/([^/)]*)")


@dataclass(frozen=True)
class JsonFormat:
    """Files of JSON objects, one per line.

    Attributes
    ----------
    lines
        How lines are stored.
    dtypes
        The user's types by column.
    complete
        Whether all columns are read, so that an unknown key is an error.
    """

    lines: LineFiles
    dtypes: Mapping[str, pa.DataType] | None = None
    complete: bool = False
    name: str = "JSON"
    rows_known: bool = False
    joins_files: bool = False

    @property
    def options(self) -> str:
        """The options that affect values."""
        return f"{self.lines}, dtypes={ {name: str(kind) for name, kind in (self.dtypes or {}).items()} }"

    def look(self, files: Files, path: str) -> Fragment:
        """Infer the column types of a file from its head.

        Raises
        ------
        SourceError
            If the file cannot be read or does not hold JSON lines.
        """
        return look_at(files, path, self._summarise)

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
        """Unify the inferred types over all files; a column can be missing from some."""
        return unify_inferred(schemas, widen_json, fill=True, fix="give dtypes=")

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableReader:
        """Make a reader of blocks, each within one file."""
        complete = set(stored.names) <= set(schema.names)
        return TableReader(replace(self, complete=complete), files, schema, stored, partitions, row_filter)

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read ranges of a file as a table; raises `CorruptBlockError` for values that do not fit."""
        self.lines.fetch(file, start, stop, head=False)
        where = self.lines.where(file, start, stop)
        unexpected = "error" if self.complete else "ignore"
        try:
            text = self.lines.read(file, start, stop)
            return _parse(text, schema, unexpected)
        except UnicodeError as error:
            raise CorruptBlockError(f"{where}: {error}; check encoding=") from error
        except pa.ArrowException as error:
            if file.failed:
                raise
            raise CorruptBlockError(f"{where}: {_explain(error, text, schema)}") from error

    def can_map(self, schema: pa.Schema) -> bool:
        """Always true: parsing copies."""
        return True

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read range by range, to hold little text in memory."""
        for group in range(start, stop):
            yield self.read(file, group, group + 1, schema)

    def _summarise(self, file: OpenFile) -> FragmentFacts:
        for head, text in self.lines.heads(file):
            facts = self._describe(file, head, text if head.whole else cut_lines(text))
            if facts.rows or head.whole:
                return facts
        raise AssertionError("the last head is the whole file")

    def _describe(self, file: OpenFile, head: Head, text: pa.Buffer) -> FragmentFacts:
        """Summarise a file from the rows in its head."""
        given = pa.schema(list((self.dtypes or {}).items()))
        try:
            sample = _parse(text, given, "infer")
        except UnicodeError as error:
            raise SourceError(f"{file.name}: {error}; check encoding=") from error
        except pa.ArrowException as error:
            raise SourceError(
                f"{file.name} does not hold JSON lines: {_explain(error, text, given)}"
            ) from error
        if sample.num_rows and not sample.num_columns:
            raise SourceError(f"{file.name}: its objects have no keys; exclude the file")
        return estimate_facts(sample, text.size, self.lines.group_bytes(file, head))


def check_json_type(kind: pa.DataType) -> None:
    """Parse an empty object as a type; raises ``ArrowNotImplementedError`` if JSON does not support it."""
    _parse_blocks(pa.py_buffer(b"{}\n"), pa.schema({"x": kind}), "ignore", _BLOCK_BYTES)


def _parse(text: pa.Buffer, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse lines, single-threaded. ``unexpected``: infer or ignore keys that the schema lacks, or raise.

    Raises
    ------
    UnicodeDecodeError
        If the text is not UTF-8, which Arrow's parser does not check.
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
    # Arrow returns no columns for blank lines alone
    return table if table.num_rows or len(table.schema) else empty_table(schema)


def _explain(error: Exception, text: pa.Buffer, schema: pa.Schema) -> str:
    """Extend an Arrow error by the column's name, where it can be found, and a fix."""
    if "unexpected field" in str(error):
        return (
            f"a key that is missing from the beginning of every file ({_find_unexpected(text, schema)}): give its "
            "type with dtypes=, or exclude it with columns="
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
    """The column whose values alone do not fit; empty if there is no such column."""
    for field in schema:
        try:
            _parse(text, pa.schema([]), "ignore")
            _parse(text, pa.schema([field]), "ignore")
        except pa.ArrowInvalid as error:
            if "convert" in str(error):
                return str(field.name)
    return ""
