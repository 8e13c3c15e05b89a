"""Plain text tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["align_table", "write_cell"]


def align_table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: Collection[str]) -> str:
    """Align columns to the right, except those named in ``texts``."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    aligned = [
        "  ".join(
            cell.ljust(width) if head in texts else cell.rjust(width)
            for head, cell, width in zip(heads, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
    aligned.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(aligned)


def write_cell(value: float | None, pattern: str) -> str:
    """Format a number, or "-" for None."""
    return "-" if value is None else pattern.format(value)
