"""Epochs whose steps are divided by cost, and the windows around one as far as they are known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from windrow.pipeline.plan.epoch_shape import EpochCounts
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_rows import StepRows
from windrow.shuffle.order.step_runs import StepRuns

# a window, the one before, and the one behind, of two epochs
_KEPT_WINDOWS = 6


class KnownWindow(Protocol):
    """A window of which it is known what its rows cost."""

    @property
    def rows(self) -> tuple[int, int]:
        """Of the epoch, from the first one to behind the last one."""


# how the runs of a window's rows are laid out: `lay_out_steps`, for its destinations
LayOut = Callable[[StepRows], tuple[tuple[StepRuns, ...], NDArray[Any]]]
Key = TypeVar("Key")
Window = TypeVar("Window", bound=KnownWindow)


class LatestWindows(Generic[Key, Window]):
    """Keeps the windows that were used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Window] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Window | None]) -> Window | None:
        """A window that is kept, or else made and kept; None if it cannot be made yet."""
        found = self._kept.get(key)
        if found is None:
            found = make()
            if found is None:
                return None
            self._kept[key] = found
            if len(self._kept) > _KEPT_WINDOWS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found


@dataclass(frozen=True, eq=False)
class DividedEpoch:
    """An epoch whose steps are divided by cost, with what is known of it when rows of a window get their places."""

    number: int
    counts: EpochCounts
    assignment: ShardAssignment
    # of each block of the dataset, what its rows measure, or with packing the lengths of its documents
    known: Sequence[NDArray[Any] | None]
    # rows of the epoch, if they are known
    total: int | None = None

    @property
    def balance(self) -> Balance:
        """What rows cost."""
        balance = self.assignment.balance
        assert balance is not None, "rows are divided by cost"
        return balance

    def first_row(self, window: int) -> int:
        """The row of the epoch at which a window starts."""
        row = self.counts.first_row(window)
        assert row is not None, "rows are counted before they are placed"
        return row

    def rows_of(self, window: int) -> tuple[int, int]:
        """The epoch's rows of a window, from the first one to behind the last one."""
        return self.first_row(window), self.first_row(window + 1)

    def steps_around(self, rows: tuple[int, int]) -> tuple[int, int]:
        """The epoch's rows of all steps that have some of ``rows``, from the first one to behind the last one."""
        (first, stop), start, step_rows = rows, self.assignment.start_row, self.assignment.step_rows
        return first - max(0, first - start) % step_rows, stop + -max(0, stop - start) % step_rows

    @property
    def windows(self) -> int:
        """The number of its windows."""
        return len(self.counts.shape.windows)


def gather_windows(
    own: Window,
    window: int,
    windows: int,
    span: tuple[int, int],
    find: Callable[[int, Window], Window | None],
) -> list[Window]:
    """A window and those around it, in order, until they hold the epoch's rows of ``span``, or one is not known.

    ``find`` gives one of an epoch's ``windows``, given its number and the window next to it.
    """
    (begin, end), found, at = span, [own], window - 1
    while found[0].rows[0] > begin and at >= 0 and (before := find(at, found[0])) is not None:
        found.insert(0, before)
        at -= 1
    at = window + 1
    while found[-1].rows[1] < end and at < windows and (behind := find(at, found[-1])) is not None:
        found.append(behind)
        at += 1
    return found
