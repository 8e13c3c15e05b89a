"""Makes text safe to print: file and column names can hold characters that change what a terminal shows."""

from __future__ import annotations


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
