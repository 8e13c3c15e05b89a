"""The division of a dataset of a given size into files and row groups."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FileRows", "Layout", "plan_layout"]

_GROUP_ROWS = 131_072
_GROUP_BYTES = 64 * 2**20
_MIN_GROUPS = 8


@dataclass(frozen=True)
class FileRows:
    """The rows [first_row, stop_row) of one file."""

    number: int
    first_row: int
    stop_row: int


@dataclass(frozen=True)
class Layout:
    """Rows cut into row groups of ``group_rows``, and those into files."""

    rows: int
    group_rows: int
    groups_per_file: int = 4

    def files(self) -> list[FileRows]:
        """Every file, in order."""
        step = self.group_rows * self.groups_per_file
        firsts = range(0, self.rows, step)
        return [FileRows(number, first, min(first + step, self.rows)) for number, first in enumerate(firsts)]


def plan_layout(size_bytes: int, row_bytes: int) -> Layout:
    """Cut about ``size_bytes`` of decoded rows into whole row groups.

    Examples
    --------
    >>> plan_layout(1_400_000_000, 168).rows, len(plan_layout(1_400_000_000, 168).files())
    (8388608, 16)
    >>> plan_layout(16_800, 168)
    Layout(rows=100, group_rows=13, groups_per_file=4)
    """
    if size_bytes < row_bytes:
        raise ValueError(f"size of {size_bytes} bytes is less than one row of {row_bytes} bytes")
    rows = size_bytes // row_bytes
    group_rows = min(_GROUP_ROWS, max(1, _GROUP_BYTES // row_bytes))
    if rows < _MIN_GROUPS * group_rows:
        return Layout(rows, -(-rows // _MIN_GROUPS))
    return Layout(round(rows / group_rows) * group_rows, group_rows)
