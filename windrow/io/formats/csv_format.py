"""CSV files: split into ranges of lines, parsed by Arrow, with one type per column over all files."""

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
from windrow.io.formats.csv_parsing import CsvOptions, parse_csv
from windrow.io.formats.file_head import Head, look_at
from windrow.io.formats.line_ranges import RANGE_BYTES, LineFiles, cut_lines
from windrow.io.formats.row_estimate import estimate_facts
from windrow.io.formats.table_reader import TableReader
from windrow.io.formats.type_widening import unify_inferred, widen_text
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["CsvFormat"]

_SHOWN_BYTES = 60
_COLUMN = re.compile(r"In CSV column #(\d+): ")


@dataclass(frozen=True)
class CsvFormat:
    """CSV files: how lines are stored, and how rows are parsed."""

    lines: LineFiles
    rows: CsvOptions
    name: str = "CSV"
    rows_known: bool = False
    joins_files: bool = False

    @property
    def options(self) -> str:
        """All options: each affects values."""
        return f"{self.lines}, {self.rows}"

    def look(self, files: Files, path: str) -> Fragment:
        """Infer the column types of a file from its head.

        Raises
        ------
        SourceError
            If the file cannot be read or parsed as CSV.
        """
        return look_at(files, path, self._summarise)

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
        """Unify the inferred types over all files."""
        return unify_inferred(schemas, widen_text, fill=False, fix="give column_names=")

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableReader:
        """Make a reader of blocks, each within one file."""
        return TableReader(self, files, schema, stored, partitions, row_filter)

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read ranges of a file as a table; raises `CorruptBlockError` for values that do not fit."""
        at_start = start == 0
        self.lines.fetch(file, start, stop, head=not at_start and not self.rows.column_names)
        where = self.lines.where(file, start, stop)
        try:
            text = self.lines.read(file, start, stop)
            if not text.size:
                return empty_table(schema)
            names = None if at_start else self._names(file)
            return self._parse(text, names, self._types(file, schema), where)
        except (pa.ArrowException, UnicodeError) as error:
            if file.failed:
                raise
            raise CorruptBlockError(f"{where}: {self._explain(error, file)}") from error

    def _parse(
        self, text: pa.Buffer, names: Sequence[str] | None, types: Mapping[str, pa.DataType], where: str
    ) -> pa.Table:
        try:
            table = parse_csv(text, self.rows, names, types)
        except pa.ArrowInvalid:
            # an open quote is the likeliest cause, and the more helpful error
            self._check_open_quotes(text, where, at_start=names is None)
            raise
        lines = table.num_rows + (self.rows.head_lines if names is None else 0)
        if not self.rows.quoting.closes(text, lines):
            self._check_open_quotes(text, where, at_start=names is None)
        return table

    def can_map(self, schema: pa.Schema) -> bool:
        """Always true: parsing copies."""
        return True

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read range by range, to hold little text in memory."""
        for group in range(start, stop):
            yield self.read(file, group, group + 1, schema)

    def _types(self, file: OpenFile, schema: pa.Schema) -> Mapping[str, pa.DataType]:
        # Arrow reads all columns if given none: without any needed column, read one to count rows
        return {field.name: field.type for field in schema} or {self._names(file)[0]: pa.binary()}

    def _summarise(self, file: OpenFile) -> FragmentFacts:
        for head, text in self._heads(file):
            facts = self._describe(file, head, text)
            if facts.rows or head.whole:
                return facts
        raise AssertionError("the last head is the whole file")

    def _heads(self, file: OpenFile) -> Iterator[tuple[Head, pa.Buffer]]:
        """Yield ever longer heads of a file, cut to whole rows, with at least one line after the header."""
        quoted = self.rows.newlines_in_values and self.rows.quoting.quote
        for head, text in self.lines.heads(file):
            if not head.whole:
                text = self.rows.quoting.whole_rows(text) if quoted else cut_lines(text)
            if head.whole or bytes(text).count(b"\n") > self.rows.head_lines:
                yield head, text

    def _describe(self, file: OpenFile, head: Head, text: pa.Buffer) -> FragmentFacts:
        """Summarise a file from the rows in its head."""
        if not bytes(self.rows.after_skipped(text)).strip() and not self.rows.column_names:
            return estimate_facts(pa.table({}), 0, [])
        self._check_open_quotes(text, file.name, at_start=True)
        skipped = text.size - self.rows.after_skipped(text).size
        if skipped >= RANGE_BYTES and self.lines.is_cut(file):
            raise SourceError(
                f"{file.name}: skip_rows= skips more than {RANGE_BYTES:,} bytes; remove these lines from the file"
            )
        try:
            sample = _sample(text, self.rows)
            names = sample.schema.names
        except (pa.ArrowException, UnicodeError) as error:
            raise SourceError(f"{file.name}: {self._explain(error, file)}") from error
        for name in self.rows.dtypes or {}:
            if name not in names:
                raise SourceError(f"{file.name} has no column {name!r}, which dtypes= names: it has {names}")
        self._check_inferred_binary(sample.schema, file)
        return estimate_facts(sample, text.size, self.lines.group_bytes(file, head))

    def _names(self, file: OpenFile) -> Sequence[str]:
        """The columns of a file, in file order."""
        if self.rows.column_names:
            return self.rows.column_names
        _, text = next(self._heads(file))
        return _sample(text, replace(self.rows, dtypes=None)).column_names

    def _check_inferred_binary(self, schema: pa.Schema, file: OpenFile) -> None:
        """Arrow silently infers binary for text of another encoding."""
        for field in schema:
            if pa.types.is_binary(field.type) and field.name not in (self.rows.dtypes or {}):
                raise SourceError(
                    f"{file.name}, column {field.name!r}: values are not UTF-8; give encoding= (such as "
                    f"'latin-1'), or dtypes={{{field.name!r}: pa.binary()}} to read them as bytes"
                )

    def _check_open_quotes(self, text: pa.Buffer, where: str, *, at_start: bool) -> None:
        if self.rows.newlines_in_values or not self.rows.quoting.quote:
            return
        text = self.rows.after_skipped(text) if at_start else text
        opens = self.rows.quoting.open_line(text)
        if opens is not None:
            line = bytes(text[opens : opens + _SHOWN_BYTES]).decode(errors="replace").splitlines()[0]
            # not a CorruptBlockError: if this block were skipped, the next range would begin inside the value
            raise SourceError(
                f"{where}: a quoted value goes on beyond the end of its line ({line!r}): read it with "
                f"newlines_in_values=True, which reads each file as a whole, or repair the file"
            )

    def _explain(self, error: Exception, file: OpenFile) -> str:
        """Replace the column number in an Arrow error by the column's name, and add a fix."""
        found = _COLUMN.search(str(error))
        if found is None:
            return (
                f"{error}; repair the file, or check column_names=, skip_rows=, delimiter=, quote_char= and "
                "encoding="
            )
        name = self._names(file)[int(found[1])]
        why = str(error).replace(found[0], "")
        return (
            f"column {name!r}: {why}. Types are inferred from the beginning of files: give "
            f"dtypes={{{name!r}: ...}} or null_values=, or repair the file"
        )


def _sample(text: pa.Buffer, rows: CsvOptions) -> pa.Table:
    # Arrow needs a newline after the header line
    return parse_csv(pa.py_buffer(bytes(text) + b"\n"), rows)
