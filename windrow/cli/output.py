"""Prints results: JSON, aligned columns, and labelled lines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from windrow.core.terminal_text import escape_controls

__all__ = ["format_table", "print_json", "print_labelled", "print_line", "print_text"]

_WIDTH = 110
_LABEL = 10


def print_json(value: Any) -> None:
    """Print a value of plain types as JSON."""
    print(json.dumps(value, indent=2, default=str))


def print_text(text: object) -> None:
    """Print text of several lines; other control characters than their ends are escaped."""
    print(escape_controls(str(text), keep="\n"))


def print_line(text: str, *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print one line; all control characters within are escaped."""
    print(escape_controls(text), end=end, file=file, flush=file is not None)


def print_labelled(label: str, text: str) -> None:
    """Print text behind a label, wrapped."""
    print(
        textwrap.fill(
            escape_controls(text),
            _WIDTH,
            initial_indent=label.ljust(_LABEL),
            subsequent_indent=" " * _LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Align columns by spaces; those numbered in ``right`` are aligned to the right.

    >>> print(format_table(("name", "rows"), [("a", "1"), ("bc", "1,000")], right=[1]))
    name   rows
    a         1
    bc    1,000
    """
    table = [tuple(map(escape_controls, row)) for row in (header, *rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
