"""`LengthGroups`: an order of rows in which those of a step have like lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer

Ints = NDArray[np.int64]

_MOST_STEPS = 2**31
_TEXT = re.compile(r"(\d+) steps of (\d+) rows(?: from (\d+))? by (.+)", re.DOTALL)


@dataclass(frozen=True)
class LengthGroups:
    """Sorts the rows of so many consecutive steps by length, so that each step gets rows of like length.

    The steps of a group come in the order of their earliest rows, and the rows of a step keep their order. Both orders
    are random where that of the rows is, since that does not depend on their lengths. A group lies in one window. A
    step that lies in several windows keeps its rows.

    ``column`` tells the length. ``step_rows`` are the rows of a step over all shards; 0 before they are known. In a
    mixture, groups begin at ``first_row``.
    """

    column: str
    steps: int
    step_rows: int = 0
    first_row: int = 0

    def __str__(self) -> str:
        begin = f" from {self.first_row}" if self.first_row else ""
        return f"{self.steps} steps of {self.step_rows} rows{begin} by {self.column}"

    @property
    def stop_row(self) -> int:
        """Where the first group ends."""
        return self.first_row + self.steps * self.step_rows

    def group_of(self, row: int) -> LengthGroups:
        """The groups from that one on which holds a row."""
        rows = self.steps * self.step_rows
        return replace(self, first_row=row - (row - self.first_row) % rows)

    @staticmethod
    def parse(text: str) -> LengthGroups | None:
        """The groups that a text stands for; None if there are none.

        >>> LengthGroups.parse(str(LengthGroups("tokens", 50, 2048)))
        LengthGroups(column='tokens', steps=50, step_rows=2048, first_row=0)
        """
        found = _TEXT.fullmatch(text)
        if found is None or not int(found[1]) or not int(found[2]):
            return None
        return LengthGroups(found[4], int(found[1]), int(found[2]), int(found[3] or 0))

    def arrange(self, lengths: NDArray[np.float32], first_row: int) -> Ints:
        """(rows,) where each row of a window comes.

        Parameters
        ----------
        lengths
            (rows,) of the window's rows in their order before.
        first_row
            The epoch's row at which the window begins.

        Examples
        --------
        >>> lengths = np.array([5, 1, 9, 2, 1, 5, 2, 9, 4], np.float32)
        >>> places = LengthGroups("tokens", 2, 2).arrange(lengths, 0)
        >>> [float(lengths[row]) for row in np.argsort(places)]
        [5.0, 9.0, 1.0, 2.0, 1.0, 2.0, 5.0, 9.0, 4.0]
        """
        size = self.step_rows
        places = np.arange(len(lengths), dtype=np.int64)
        begin = -first_row % size
        stop = begin + max(0, len(lengths) - begin) // size * size
        for at in range(begin, stop, self.steps * size):
            group = lengths[at : min(at + self.steps * size, stop)]
            rows = np.arange(len(group))
            # sorting by length, then by row: much faster than a stable sort of floats
            keys = (group + np.float32(0)).view(np.uint32).astype(np.uint64) << np.uint64(32) | rows.astype(
                np.uint64
            )
            keys.sort()
            step = np.empty(len(group), np.int64)
            step[keys & np.uint64(2**32 - 1)] = rows // size
            # steps by their earliest rows: of equal targets, the last one is assigned
            earliest = np.empty(-(-len(group) // size), np.int64)
            earliest[step[::-1]] = rows[::-1]
            number = np.empty(len(earliest), np.uint16 if len(earliest) < 2**16 else np.int64)
            number[np.argsort(earliest)] = np.arange(len(earliest))
            places[at + np.argsort(number[step], kind="stable")] = at + rows
        return places


def check_group_steps(value: object) -> int:
    """Return ``group_by_length`` as an integer; raise PlanError if it is none, or below 2."""
    steps = as_integer(value)
    if steps is None or not 2 <= steps < _MOST_STEPS:
        raise PlanError(
            f"group_by_length={value!r} must be an integer of 2 or more: the number of steps whose rows are sorted by "
            "length"
        )
    return steps
