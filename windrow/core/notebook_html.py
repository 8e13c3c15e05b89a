"""HTML of values for notebooks: every text is escaped, and the colours are those of the notebook's theme."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from windrow.core.terminal_text import escape_controls

# Notebooks have rules of their own for tables (stripes, alignment), which these override; no colours but those of the
# page, so that light and dark themes fit.
_STYLE = """<style>
div.windrow-value {font-size: 0.9em; line-height: 1.45; overflow-x: auto}
div.windrow-value p {margin: 0.4em 0}
div.windrow-value ol {margin: 0.4em 0; padding-left: 1.8em}
div.windrow-value code {font-size: 0.95em; color: inherit; background: none; padding: 0; white-space: pre-wrap}
div.windrow-value table {border-collapse: collapse; border: 0; margin: 0.4em 0 !important; font-size: 1em}
div.windrow-value tr {background: none !important; border: 0; border-bottom: 1px solid rgba(128, 128, 128, 0.3)}
div.windrow-value th, div.windrow-value td {text-align: left !important; vertical-align: top !important; border: 0;
  white-space: normal; overflow-wrap: break-word; padding: 0.15em 1.2em 0.15em 0; max-width: 56em}
div.windrow-value th {font-weight: 600}
div.windrow-value .number {text-align: right !important; white-space: nowrap; font-variant-numeric: tabular-nums}
div.windrow-value svg, div.windrow-value img {min-width: 640px; max-width: 100%; height: auto}
</style>"""
_MAX_TEXT = 300
_NUMBER = re.compile(r"(?:(?:≤ |about )?-?[\d,.]+(?: (?:[KMGTP]i)?B)?|nan|)")


def escape_text(text: str) -> str:
    r"""Return a text as HTML; control characters become visible.

    >>> escape_text("<b>bold</b>" + chr(27))
    '&lt;b&gt;bold&lt;/b&gt;\\x1b'
    """
    return escape(escape_controls(text))


def format_value(*parts: str) -> str:
    """Return the HTML of a value, given that of its parts; empty ones are left out."""
    return "\n".join(["<div class='windrow-value'>", _STYLE, *filter(None, parts), "</div>"])


def format_paragraph(text: str, *, is_title: bool = False) -> str:
    """Return a paragraph, of a title in bold."""
    inner = escape_text(text)
    return f"<p><strong>{inner}</strong></p>" if is_title else f"<p>{inner}</p>"


def format_steps(calls: Iterable[str]) -> str:
    """Return a numbered list of calls; long ones are cut."""
    items = "".join(f"<li><code>{escape_text(_cut(call))}</code></li>" for call in calls)
    return f"<ol>{items}</ol>"


def format_table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), *, names: bool = False) -> str:
    """Return a table; columns of numbers are aligned on the right.

    Parameters
    ----------
    rows
        Texts, as many in each row; long ones are cut.
    head
        The names of the columns; none: there is no head.
    names
        Whether the first column has the names of the rows.
    """
    body = [[_cut(cell) for cell in row] for row in rows]
    if not body:
        return ""
    is_number = [all(_is_number(row[at]) for row in body) for at in range(len(body[0]))]
    lines = [_format_row(head, "th", is_number)] if head else []
    for row in body:
        cells = _format_row(row[1:], "td", is_number[1:]) if names else _format_row(row, "td", is_number)
        lines.append(f"<th>{escape_text(row[0])}</th>{cells}" if names else cells)
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _format_row(cells: Sequence[str], tag: str, is_number: Sequence[bool]) -> str:
    return "".join(
        f"<{tag}{' class=number' if right else ''}>{escape_text(cell)}</{tag}>"
        for cell, right in zip(cells, is_number, strict=True)
    )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
