"""Text for terminals: characters that would change what one shows are escaped, and the columns of tables aligned."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def escape_controls(text: str, *, keep: str = "") -> str:
    r"""Escape every character that is not printable, as ``repr`` does, except those in ``keep``.

    Everything that the package prints and that can hold a name from outside goes through this function: the command's
    output, the text of errors, reprs, ``explain()`` and ``stats()``.

    Examples
    --------
    >>> print(escape_controls("a\x1b[31mred\n"), escape_controls("größe"))
    a\x1b[31mred\n größe
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return a line for each row, whose columns are aligned by spaces; those numbered in ``right`` to the right.

    >>> align_columns([("name", "rows"), ("a", "1"), ("bc", "1,000")], right=[1])
    ['name   rows', 'a         1', 'bc    1,000']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
