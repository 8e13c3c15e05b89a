"""What is known of an epoch's row counts, and whether that suffices to compute positions."""

from __future__ import annotations

from windrow.pipeline.coordinator.scheduling.events import EpochShape
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["EpochCounts"]


class EpochCounts:
    """Row counts of one epoch, window by window and part by part."""

    def __init__(self, shape: EpochShape) -> None:
        self.shape = shape
        self._rows = [[part.rows for part in parts] for parts in shape.windows]
        # sums are kept, since the scheduler asks for them at every event
        self._sums = [sum(rows or 0 for rows in parts) for parts in self._rows]
        self._unknown = [sum(rows is None for rows in parts) for parts in self._rows]
        self._next_with_parts = _find_next([len(parts) for parts in self._rows])
        # where windows are known to begin, whatever is counted before them
        self._window_starts = {0: 0}
        self._set_start(0, 0)

    def start_at(self, window: int, row: int) -> None:
        """Take it that a window begins at this row of the epoch: nothing before it need be counted."""
        if any(self._unknown):
            self._set_start(window, row)
        else:
            self._set_start(0, 0)

    def _set_start(self, window: int, row: int) -> None:
        self._first = window
        self._window_starts[window] = row
        self._unknown_parts = sum(self._unknown[window:])
        self._known_total = row + sum(self._sums[window:])

    @property
    def first_window(self) -> int:
        """The window from which on rows are counted."""
        return self._first

    def next_with_parts(self, window: int) -> int:
        """The first window at or behind ``window`` that has parts; the number of windows if none has."""
        return self._next_with_parts[min(window, len(self._rows))]

    def record(self, window: int, part: int, rows: int) -> None:
        """Note the rows that a part turned out to have."""
        if self._rows[window][part] is None:
            self._rows[window][part] = rows
            self._sums[window] += rows
            self._unknown[window] -= 1
            if window >= self._first:
                self._known_total += rows
                self._unknown_parts -= 1

    def window_rows(self, window: int) -> int | None:
        """Rows of a window, or None while any part is unknown."""
        return None if self._unknown[window] else self._sums[window]

    def first_row(self, window: int) -> int | None:
        """The epoch row at which a window begins, or None while unknown."""
        if window < self._first:
            return None
        begin = max(begin for begin in self._window_starts if begin <= window)
        if self._unknown_parts and any(self._unknown[begin:window]):
            return None
        return self._window_starts[begin] + sum(self._sums[begin:window])

    @property
    def complete(self) -> bool:
        """Whether every part's rows are known, from where the epoch is begun."""
        return not self._unknown_parts

    @property
    def total(self) -> int | None:
        """Rows of the epoch, or None while any part is unknown."""
        return None if self._unknown_parts else self._known_total

    def starts(self, window: int, assignment: ShardAssignment) -> tuple[tuple[int, int], ...]:
        """A window and those behind it that hold rows of the step in which it ends: each with its first row."""
        found: list[tuple[int, int]] = []
        stop = self.first_row(window + 1)
        step_stop = 0 if stop is None else stop + -(stop - assignment.start_row) % assignment.step_rows
        for at in range(window, len(self._rows)):
            first = self.first_row(at)
            if first is None or first >= step_stop:
                break
            found.append((at, first))
        return tuple(found)

    def is_ordered(self, window: int, assignment: ShardAssignment) -> bool:
        """Whether the deal of every row of the window is known.

        The window's own rows and all before must be counted. Rows of a step that
        reaches past the window are dealt differently if it is the epoch's last, so
        rows behind the window must be counted until that step is full, or to the end.
        """
        if not self._unknown_parts:
            return window >= self._first
        first, stop = self.first_row(window), self.first_row(window + 1)
        # where the next window begins may be known because another shard has come to it
        if first is None or stop is None or self._unknown[window]:
            return False
        missing = -(stop - assignment.start_row) % assignment.step_rows
        return missing <= self._rows_behind(window)

    def _rows_behind(self, window: int) -> int:
        rows = 0
        for parts in self._rows[window + 1 :]:
            for part in parts:
                if part is None:
                    return rows
                rows += part
        return rows

    def unknown_from(self, window: int) -> tuple[int, int] | None:
        """The first (window, part) at or behind ``window`` whose rows are unknown and needed."""
        for at in range(max(window, self._first), len(self._rows)):
            if self._unknown[at]:
                return at, self._rows[at].index(None)
        return None


def _find_next(parts: list[int]) -> list[int]:
    found = [len(parts)] * (len(parts) + 1)
    for window in reversed(range(len(parts))):
        found[window] = window if parts[window] else found[window + 1]
    return found
