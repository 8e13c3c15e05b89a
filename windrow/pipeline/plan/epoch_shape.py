"""An epoch as the scheduler sees it: the parts of each window with their stages, and row counts. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.pipeline.plan.cursor import Place
from windrow.shuffle.order.round_runs import MAX_SLICES, count_slices, find_slice
from windrow.shuffle.order.shard_assignment import ShardAssignment


@dataclass(frozen=True)
class Stage:
    """One stage of preparing a part of a window; ``name`` is for messages and timelines.

    A stage that ``needs_order`` computes positions, and cannot run before the row counts that they
    depend on are known. One that ``needs_window`` waits until all parts of the window have passed the
    stage before.
    """

    name: str
    needs_order: bool
    needs_window: bool = False


@dataclass(frozen=True)
class Part:
    """An input split: the blocks of a window that one task prepares."""

    rows: int | None  # delivered rows; None while unknown
    size_bytes: int  # expected size of the output
    unpacked_bytes: int | None = None  # with values unpacked, as in runs and batches; None: the same
    stored_rows: int | None = None  # may be an estimate; None: as many as it delivers

    @property
    def weight(self) -> int:
        """Its stored rows, by which sizes are estimated; at least 1."""
        return max(1, self.stored_rows or self.rows or 0)


@dataclass(frozen=True, eq=False)
class Rounds:
    """The windows that each round of a mixture needs, those from ``start`` to ``stop``.

    ``first`` and ``last`` hold the first and the last round of each window.
    """

    start: int
    stop: int
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @cached_property
    def _by_round(self) -> dict[int, list[int]]:
        needed: dict[int, list[int]] = {}
        for window, (first, last) in enumerate(zip(self.first.tolist(), self.last.tolist(), strict=True)):
            for number in range(max(first, self.start), last + 1):
                needed.setdefault(number, []).append(window)
        return needed

    def windows(self, number: int) -> Sequence[int]:
        """The windows that a round needs, in order."""
        return self._by_round.get(number, ())

    def slices(self, window: int, most: int) -> int:
        """The number of slices of a window."""
        return count_slices(int(self.first[window]), int(self.last[window]) + 1, most)

    def first_kept(self, window: int, number: int, most: int) -> int | None:
        """The first slice of a window that is needed from a round on; None: the window is not."""
        first, stop = int(self.first[window]), int(self.last[window]) + 1
        return None if number >= stop else find_slice(max(number, first), first, stop, most)


@dataclass(frozen=True)
class EpochShape:
    """An epoch as the scheduler sees it: the parts of each window, and the stages of every part in order."""

    windows: tuple[tuple[Part, ...], ...]
    stages: tuple[Stage, ...]
    # of a mixture, whose windows hold rows of several rounds each; shards then fetch rounds
    rounds: Rounds | None = None
    # of a mixture's window
    most_slices: int = MAX_SLICES
    # where the last round ends
    stop_row: int = 0
    # gives the rows of a window whose parts are all counted, if padding makes them more than those of its parts
    window_rows: Callable[[int], int] | None = None
    # gives the tokens of a window whose rows have been measured, where steps end by their tokens
    window_tokens: Callable[[int], float] | None = None

    @property
    def fetched(self) -> int:
        """Up to where what shards fetch is numbered: windows, or rounds."""
        return len(self.windows) if self.rounds is None else self.rounds.stop

    def windows_of(self, fetched: int) -> Sequence[int]:
        """The windows that hold what shards fetch by this number."""
        return (fetched,) if self.rounds is None else self.rounds.windows(fetched)

    def slices_of(self, window: int, slices: int) -> int:
        """The number of slices of a window, ``slices`` where it is fetched by itself."""
        return slices if self.rounds is None else self.rounds.slices(window, self.most_slices)

    def first_kept(self, window: int, place: Place) -> int | None:
        """The first slice of a window that is needed from a place in this epoch on; None: the window is not needed."""
        if self.rounds is None:
            if place.window > window:
                return None
            return place.slice if place.window == window else 0
        return self.rounds.first_kept(window, place.window, self.most_slices)


class EpochCounts:
    """Row counts of one epoch, by window and part."""

    def __init__(self, shape: EpochShape) -> None:
        self.shape = shape
        self._rows = [[part.rows for part in parts] for parts in shape.windows]
        # sums are cached, since the scheduler needs them at every event
        self._sums = [sum(rows or 0 for rows in parts) for parts in self._rows]
        self._unknown = [sum(rows is None for rows in parts) for parts in self._rows]
        for window, unknown in enumerate(self._unknown):
            self._sums[window] += 0 if unknown else self._padding(window)
        self._next_with_parts = _find_next([len(parts) for parts in self._rows])
        # first rows of windows that are known without counting what comes before them
        self._window_starts = {0: 0}
        self._set_start(0, 0)

    def start_at(self, window: int, row: int) -> None:
        """Start counting at a window whose first row in the epoch is known: nothing before it is needed."""
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
        """The first window from ``window`` on that has parts; the number of windows if none has. Rounds have rows."""
        if self.shape.rounds is not None:
            return window
        return self._next_with_parts[min(window, len(self._rows))]

    def record(self, window: int, part: int, rows: int) -> None:
        if self._rows[window][part] is None:
            self._rows[window][part] = rows
            self._sums[window] += rows
            self._unknown[window] -= 1
            padding = 0 if self._unknown[window] else self._padding(window)
            self._sums[window] += padding
            if window >= self._first:
                self._known_total += rows + padding
                self._unknown_parts -= 1

    def _padding(self, window: int) -> int:
        """The rows that a window has beside those of its parts, all of which are counted."""
        shape = self.shape
        return 0 if shape.window_rows is None else shape.window_rows(window) - self._sums[window]

    def window_rows(self, window: int) -> int | None:
        """Rows of a window, or None while a part is unknown."""
        return None if self._unknown[window] else self._sums[window]

    def first_row(self, window: int) -> int | None:
        """The row of the epoch at which a window starts, or None while unknown."""
        if window < self._first:
            return None
        start = max(start for start in self._window_starts if start <= window)
        if self._unknown_parts and any(self._unknown[start:window]):
            return None
        return self._window_starts[start] + sum(self._sums[start:window])

    @property
    def complete(self) -> bool:
        """Whether all parts from the first window on are known."""
        return not self._unknown_parts

    @property
    def total(self) -> int | None:
        """Rows of the epoch, or None while a part is unknown; of a mixture, the row at which it ends."""
        if self.shape.rounds is not None:
            return self.shape.stop_row
        return None if self._unknown_parts else self._known_total

    def starts(self, window: int, assignment: ShardAssignment) -> tuple[tuple[int, int], ...]:
        """First rows of this window and of the later ones that hold rows of the step in which it ends."""
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
        """Whether the shard assignment of every row of the window is known.

        The window's own rows and all before must be counted. If its last step reaches past the
        window, that step's assignment depends on whether it is the last of the epoch. So later rows
        must be counted until the step is full, or to the end. With `Balance`, it depends on the costs of all rows of
        the step, and which these are on all rows of a window.
        """
        if not self._unknown_parts:
            return window >= self._first
        first, stop = self.first_row(window), self.first_row(window + 1)
        # the next window's first row can be known from another shard that started there
        if first is None or stop is None or self._unknown[window]:
            return False
        if assignment.ends_by_tokens:
            # no step has more tokens than this
            return self._tokens_behind(window) > assignment.shards * assignment.place_stride
        missing = -(stop - assignment.start_row) % assignment.step_rows
        return missing <= self._rows_behind(window, whole=assignment.balance is not None)

    def _tokens_behind(self, window: int) -> float:
        """The tokens behind a window up to the first window that has not been measured."""
        tokens, window_tokens = 0.0, self.shape.window_tokens
        assert window_tokens is not None, "steps end by their tokens"
        for number in range(window + 1, len(self._rows)):
            if self._unknown[number]:
                break
            tokens += window_tokens(number)
        return tokens

    def _rows_behind(self, window: int, *, whole: bool) -> int:
        """The rows behind a window up to the first part that is not counted; ``whole``: of whole windows."""
        rows = 0
        for number, parts in enumerate(self._rows[window + 1 :], window + 1):
            if whole and self._unknown[number]:
                return rows
            for part in parts:
                if part is None:
                    return rows
                rows += part
        return rows

    def first_unknown(self) -> tuple[int, int] | None:
        """The first (window, part) that is needed but not counted."""
        for at in range(self._first, len(self._rows)):
            if self._unknown[at]:
                return at, self._rows[at].index(None)
        return None


def _find_next(parts: list[int]) -> list[int]:
    found = [len(parts)] * (len(parts) + 1)
    for window in reversed(range(len(parts))):
        found[window] = window if parts[window] else found[window + 1]
    return found
