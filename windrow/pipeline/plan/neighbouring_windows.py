"""Windows around one whose steps are divided by cost, as far as they are known; the latest are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from windrow.shuffle.order.shard_assignment import ShardAssignment

# a window, the one before, and the one behind, of two epochs
_KEPT_WINDOWS = 6


class KnownWindow(Protocol):
    """A window of which it is known what its rows cost."""

    @property
    def rows(self) -> tuple[int, int]:
        """Of the epoch, from the first one to behind the last one."""


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


def steps_around(assignment: ShardAssignment, rows: tuple[int, int]) -> tuple[int, int]:
    """The epoch's rows of all steps that have some of ``rows``, from the first one to behind the last one."""
    (first, stop), start, step_rows = rows, assignment.start_row, assignment.step_rows
    return first - max(0, first - start) % step_rows, stop + -max(0, stop - start) % step_rows


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
