"""Text for terminals: characters that would change what one shows are escaped, columns aligned, and things counted."""

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


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun, which gets an s unless it is one.

    >>> format_count(1, "file"), format_count(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
