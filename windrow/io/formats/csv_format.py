"""CSV files: split into ranges of lines, parsed by Arrow, with one type per column over all files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrow_support import empty_table
from windrow.core.errors import SourceError
from windrow.io.catalog.column_selection import make_unknown_column_error
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.inferred_types import type_names, unify_inferred, widen_text
from windrow.io.formats.line_formats import (
    RANGE_BYTES,
    LineFiles,
    LineFormat,
    Piece,
    cut_lines,
    parse_in_blocks,
)
from windrow.io.formats.row_group_format import Head, estimate_facts

_WINDOW_BYTES = 2**18
_TAIL_BYTES = 64 * 1024
_NEWLINE = 10
_SHOWN_BYTES = 60
_COLUMN = re.compile(r"In CSV column #(\d+): ")


@dataclass(frozen=True)
class Quoting:
    """How values are quoted. Each character is one ASCII byte; ``escape`` can be empty."""

    delimiter: str
    quote: str
    double: bool
    escape: str

    def open_line(self, text: pa.Buffer) -> int | None:
        """The offset of the first line that ends inside a quoted value; None if no line does.

        Without an escape character, such a line has an odd number of quotes. So only those lines
        are scanned byte by byte, and most files have none.
        """
        data = np.frombuffer(text, np.uint8)
        mark, begin, carried = ord(self.quote), 0, 0
        for start in range(0, len(data), _WINDOW_BYTES):
            window = data[start : start + _WINDOW_BYTES]
            places = np.flatnonzero((window == mark) | (window == _NEWLINE))
            newlines = np.flatnonzero(window[places] == _NEWLINE)
            counts = np.diff(newlines, prepend=-1) - 1
            if not len(counts):
                carried += len(places)
                continue
            counts[0] += carried
            ends = places[newlines] + start
            begins = np.concatenate([[begin], ends[:-1] + 1])
            for line in np.flatnonzero(counts if self.escape else counts & 1).tolist():
                if self._ends_open(bytes(data[begins[line] : ends[line]])):
                    return int(begins[line])
            begin, carried = int(ends[-1]) + 1, len(places) - 1 - int(newlines[-1])
        return begin if carried and self._ends_open(bytes(data[begin:])) else None

    def closes(self, text: pa.Buffer, lines: int) -> bool:
        """Whether the text certainly has ``lines`` lines and the last of them closes its quotes.

        If parsing the text gave as many rows, then no quoted value spans lines anywhere. This check
        costs a fraction of `open_line`.
        """
        data = np.frombuffer(text, np.uint8)
        windows = range(0, len(data), _WINDOW_BYTES)
        found = sum(int(np.count_nonzero(data[at : at + _WINDOW_BYTES] == _NEWLINE)) for at in windows)
        tail = bytes(data[-_TAIL_BYTES:])
        ended = tail.endswith(b"\n")
        if found + (not ended) != lines:
            return False
        begin = tail.rfind(b"\n", 0, len(tail) - ended) + 1
        return (begin > 0 or len(tail) == len(data)) and not self._ends_open(tail[begin:].rstrip(b"\n"))

    def whole_rows(self, text: pa.Buffer) -> pa.Buffer:
        """The complete rows of a file's head, where values can contain newlines."""
        data = bytes(text)
        rows = self._row_end(data)
        return text.slice(0, rows)

    def _row_end(self, data: bytes) -> int:
        """The offset after the last newline outside of quotes."""
        end = at = 0
        while True:
            newline = data.find(b"\n", at)
            if newline < 0:
                return end
            if not self._ends_open(data[end:newline]):
                end = newline + 1
            at = newline + 1

    def _ends_open(self, line: bytes) -> bool:
        """Whether a sequence of rows ends inside quotes; quotes open only at the beginning of a value."""
        delimiter, quote = self.delimiter.encode(), self.quote.encode()
        at = 0
        while at <= len(line):
            if line[at : at + 1] == quote:
                closed = self._closing(line, at + 1)
                if closed is None:
                    return True
                at = closed
            at = self._next_value(line, at, delimiter)
        return False

    def _closing(self, line: bytes, at: int) -> int | None:
        """The offset after the quote that closes a value."""
        quote, escape = self.quote.encode(), self.escape.encode()
        while at < len(line):
            byte = line[at : at + 1]
            if escape and byte == escape:
                at += 2
            elif byte != quote:
                at += 1
            elif self.double and line[at + 1 : at + 2] == quote:
                at += 2
            else:
                return at + 1
        return None

    def _next_value(self, line: bytes, at: int, delimiter: bytes) -> int:
        """The offset of the next value, after a delimiter or newline; past the end if there is none."""
        found = [place for place in (line.find(delimiter, at), line.find(b"\n", at)) if place >= 0]
        return min(found) + 1 if found else len(line) + 1


@dataclass(frozen=True)
class CsvOptions:
    """How rows are parsed; see ``windrow.read_csv``."""

    quoting: Quoting
    header: bool = True
    column_names: tuple[str, ...] = ()
    skip_rows: int = 0
    dtypes: Mapping[str, pa.DataType] | None = None
    null_values: tuple[str, ...] | None = None
    strings_can_be_null: bool = False
    newlines_in_values: bool = False

    def __str__(self) -> str:
        options = {**vars(self), "dtypes": type_names(self.dtypes)}
        return ", ".join(f"{name}={value!r}" for name, value in options.items())

    @property
    def head_lines(self) -> int:
        """The minimum number of lines before the first row."""
        return self.skip_rows + self.header

    def after_skipped(self, text: pa.Buffer) -> pa.Buffer:
        lines = re.match(rb"(?:[^\n]*\n){%d}" % self.skip_rows, text)
        return text.slice(lines.end() if lines else 0)


@dataclass(frozen=True)
class CsvFormat(LineFormat):
    """CSV files: how lines are stored, and how rows are parsed.

    ``given_schema`` states that ``dtypes`` are those of ``schema=``, which directories can have columns of too.
    """

    lines: LineFiles
    rows: CsvOptions
    given_schema: bool = False
    name: str = "CSV"

    @property
    def options(self) -> str:
        return f"{self.lines}, {self.rows}"

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        merged = unify_inferred(schemas, widen_text, fix="give column_names=")
        for name in () if self.given_schema else self.rows.dtypes or ():
            if name not in merged.schema.names:
                raise make_unknown_column_error(name, merged.schema.names, "dtypes=", "no file has it")
        return merged

    @property
    def needs_head(self) -> bool:
        return not self.rows.column_names

    def parse(self, piece: Piece, schema: pa.Schema) -> pa.Table:
        text, at_start = piece.text, piece.at_start
        if not text.size:
            return empty_table(schema)
        names = None if at_start else self._names(piece.file)
        # Arrow reads all columns if given none: without any needed column, read one to count rows
        types = {field.name: field.type for field in schema} or {self._names(piece.file)[0]: pa.binary()}
        try:
            table = _parse_rows(text, self.rows, names, types)
        except pa.ArrowInvalid:
            # an open quote is the likeliest cause, and the more helpful error
            self._check_open_quotes(text, piece.where, at_start=at_start)
            raise
        lines = table.num_rows + (self.rows.head_lines if at_start else 0)
        if not self.rows.quoting.closes(text, lines):
            self._check_open_quotes(text, piece.where, at_start=at_start)
        return table

    def heads(self, file: OpenFile) -> Iterator[Head]:
        """Yield ever longer heads of a file, cut to whole rows, with at least one line after the header."""
        quoted = self.rows.newlines_in_values and self.rows.quoting.quote
        for head in self.lines.heads(file):
            if quoted and not head.whole:
                whole = replace(head, data=self.rows.quoting.whole_rows(head.data))
            else:
                whole = cut_lines(head)
            if head.whole or bytes(whole.data).count(b"\n") > self.rows.head_lines:
                yield whole

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        text = head.data
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
            # Arrow decodes names only now
            sample.schema.names  # noqa: B018
        except (pa.ArrowException, UnicodeError) as error:
            why = self.explain(error, Piece(file, text, file.name), pa.schema([]))
            raise SourceError(f"{file.name}: {why}") from error
        self._check_inferred_binary(sample.schema, file)
        return estimate_facts(sample, text.size, self.lines.group_bytes(file, head))

    def _names(self, file: OpenFile) -> Sequence[str]:
        """The columns of a file, in file order."""
        if self.rows.column_names:
            return self.rows.column_names
        head = next(self.heads(file))
        return _sample(head.data, replace(self.rows, dtypes=None)).column_names

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

    def explain(self, error: Exception, piece: Piece, schema: pa.Schema) -> str:
        """Replace the column number in an Arrow error by the column's name, and add a fix."""
        found = _COLUMN.search(str(error))
        if found is None:
            return (
                f"{error}; repair the file, or check column_names=, skip_rows=, delimiter=, quote_char= and "
                "encoding="
            )
        name = self._names(piece.file)[int(found[1])]
        why = str(error).replace(found[0], "")
        if self.given_schema:
            return f"column {name!r}: {why}. schema= states its type: give another one, or repair the file"
        return (
            f"column {name!r}: {why}. Types are inferred from the beginning of files: give "
            f"dtypes={{{name!r}: ...}} or null_values=, or repair the file"
        )


def _sample(text: pa.Buffer, rows: CsvOptions) -> pa.Table:
    # Arrow needs a newline after the header line
    return _parse_rows(pa.py_buffer(bytes(text) + b"\n"), rows)


def _parse_rows(
    text: pa.Buffer,
    options: CsvOptions,
    names: Sequence[str] | None = None,
    types: Mapping[str, pa.DataType] | None = None,
) -> pa.Table:
    """Parse whole rows of UTF-8 to a table, single-threaded.

    ``names`` are the file's columns; None if the text is the beginning of a file, which names them
    itself. ``types`` are the needed columns with their types; None reads all, with types inferred from
    the first megabyte.
    """
    import pyarrow.csv as csv

    begin = _beginning(options) if names is None else {"column_names": list(names)}
    quoting = options.quoting
    parse_options = csv.ParseOptions(
        delimiter=quoting.delimiter,
        quote_char=quoting.quote or False,
        double_quote=quoting.double,
        escape_char=quoting.escape or False,
        newlines_in_values=options.newlines_in_values,
    )
    convert_options = csv.ConvertOptions(
        column_types=dict((options.dtypes or {}) if types is None else types),
        include_columns=None if types is None else list(types),
        # other files have them
        include_missing_columns=types is not None,
        null_values=None if options.null_values is None else list(options.null_values),
        strings_can_be_null=options.strings_can_be_null,
    )

    def parse(block_bytes: int) -> pa.Table:
        read_options = csv.ReadOptions(use_threads=False, block_size=block_bytes, **begin)
        return csv.read_csv(pa.BufferReader(text), read_options, parse_options, convert_options)

    return parse_in_blocks(text, parse)


def check_csv_type(kind: pa.DataType) -> None:
    """Parse an empty column of a type; raises ``ArrowNotImplementedError`` if CSV does not support it."""
    import pyarrow.csv as csv

    csv.read_csv(
        pa.BufferReader(b"x\n"),
        read_options=csv.ReadOptions(use_threads=False),
        convert_options=csv.ConvertOptions(column_types={"x": kind}),
    )


def _beginning(options: CsvOptions) -> dict[str, Any]:
    """Arrow's read options for the first lines of a file."""
    named = bool(options.column_names)
    return {
        "skip_rows": options.skip_rows,
        "column_names": list(options.column_names) or None,
        "skip_rows_after_names": int(options.header and named),
        "autogenerate_column_names": not options.header and not named,
    }
