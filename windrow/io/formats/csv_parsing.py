"""Parse rows of CSV to tables: ``pyarrow.csv`` with the options of ``read_csv``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.io.formats.csv_quotes import Quoting

__all__ = ["CsvOptions", "check_csv_type", "parse_csv"]

# Arrow parses in blocks, and each line must fit into one block.
_BLOCK_BYTES = 2**20
_LARGEST_BYTES = 2**31 - 1


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
        types = {name: str(kind) for name, kind in (self.dtypes or {}).items()}
        return ", ".join(f"{name}={value!r}" for name, value in {**vars(self), "dtypes": types}.items())

    @property
    def head_lines(self) -> int:
        """The minimum number of lines before the first row."""
        return self.skip_rows + self.header

    def after_skipped(self, text: pa.Buffer) -> pa.Buffer:
        """A file's head without the skipped lines."""
        lines = re.match(rb"(?:[^\n]*\n){%d}" % self.skip_rows, text)
        return text.slice(lines.end() if lines else 0)


def parse_csv(
    text: pa.Buffer,
    options: CsvOptions,
    names: Sequence[str] | None = None,
    types: Mapping[str, pa.DataType] | None = None,
) -> pa.Table:
    """Parse rows to a table, single-threaded.

    Parameters
    ----------
    text
        Whole rows, as UTF-8.
    options
        How rows are parsed.
    names
        The file's columns; None if the text is the beginning of a file and names them itself.
    types
        The needed columns with their types; None reads all, with types inferred from the first
        megabyte.

    Raises
    ------
    ArrowInvalid
        If rows differ in length or values do not fit.
    """
    try:
        return _parse(text, options, names, types, _BLOCK_BYTES)
    except pa.ArrowInvalid as error:
        if "straddling" not in str(error):
            raise
        return _parse(text, options, names, types, min(text.size, _LARGEST_BYTES))


def _parse(
    text: pa.Buffer,
    options: CsvOptions,
    names: Sequence[str] | None,
    types: Mapping[str, pa.DataType] | None,
    block_bytes: int,
) -> pa.Table:
    import pyarrow.csv as csv

    begin = _beginning(options) if names is None else {"column_names": list(names)}
    quoting = options.quoting
    return csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(use_threads=False, block_size=block_bytes, **begin),
        parse_options=csv.ParseOptions(
            delimiter=quoting.delimiter,
            quote_char=quoting.quote or False,
            double_quote=quoting.double,
            escape_char=quoting.escape or False,
            newlines_in_values=options.newlines_in_values,
        ),
        convert_options=csv.ConvertOptions(
            column_types=dict((options.dtypes or {}) if types is None else types),
            include_columns=None if types is None else list(types),
            null_values=None if options.null_values is None else list(options.null_values),
            strings_can_be_null=options.strings_can_be_null,
        ),
    )


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
