"""Where the rows of a window go if its steps are divided by cost: what rows measure, in the order of the epoch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.neighbouring_windows import DividedEpoch, LatestWindows, LayOut, gather_windows
from windrow.pipeline.plan.window_places import WindowPlaces, WindowPlan, find_list_limit
from windrow.shuffle.order.length_groups import LengthGroups
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_cuts import StepCuts
from windrow.shuffle.order.step_rows import WindowCuts, divide_cut_rows, divide_rows
from windrow.shuffle.order.token_budget import TokenBudget
from windrow.shuffle.order.window_order import WindowOrder, order_window

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


def count_window_tokens(
    plan: Callable[[int], WindowPlan], measures: Sequence[Floats | None], budget: TokenBudget, window: int
) -> float:
    """The tokens of a window of an epoch whose rows have been measured; ``plan`` gives its blocks."""
    found = [measures[block] for block in plan(window).blocks.tolist()]
    return float(sum(budget.count(each).sum() for each in found if each is not None))


class _Window(NamedTuple):
    """A window whose rows have been measured."""

    rows: tuple[int, int]
    measures: Floats  # (rows,) in their order
    positions: Ints  # (rows,) of its stored rows


class MeasuredRows:
    """What rows measure, window by window in the order of the epoch; the latest windows are kept.

    ``plan`` gives the blocks of a window of an epoch, and ``seed`` the order of its rows.
    """

    def __init__(self, plan: Callable[[int, int], WindowPlan], seed: int | None) -> None:
        self._plan = plan
        self._seed = seed
        self._kept: LatestWindows[tuple[str, LengthGroups | None, int, int, int], _Window] = LatestWindows()
        self._cuts: dict[tuple[int, ShardAssignment], StepCuts] = {}

    def _find(
        self, epoch: DividedEpoch, window: int, *, first: int | None = None, stop: int | None = None
    ) -> _Window | None:
        """A window that begins at the epoch's row ``first``, or ends at ``stop``; None if it has not been measured."""
        balance, groups = epoch.balance, epoch.assignment.groups
        known = self._plan(epoch.number, window).select(epoch.known)
        if known is None:
            return None
        count = sum(map(len, known))
        begin = (stop or 0) - count if first is None else first

        def make() -> _Window:
            stored = np.concatenate([np.zeros(0, np.float32), *known])
            positions = self._order(epoch.number, window, count, 0).epoch_rows(0, count)
            ordered = np.empty_like(stored)
            ordered[positions] = stored
            if groups is not None:
                places = groups.arrange(ordered, begin)
                positions = places[positions]
                ordered[places] = ordered.copy()
            return _Window((begin, begin + count), ordered, positions)

        return self._kept.get((balance.column, groups, epoch.number, window, begin), make)

    def around(
        self, epoch: DividedEpoch, window: int, cuts: WindowCuts | None = None
    ) -> tuple[int, Floats, Ints]:
        """The measures of a window's rows, and of others of its first and last step as far as they are known.

        ``cuts``: where these steps begin, if they end by their tokens. Returns the epoch's row of the first of these
        rows, (rows,) the measures, and the positions of the window's stored rows.
        """
        rows = epoch.rows_of(window)
        own = self._find(epoch, window, first=rows[0])
        assert own is not None, "rows are measured before they are placed"
        span = epoch.steps_around(rows) if cuts is None else (int(cuts.starts[0]), int(cuts.starts[-1]))

        def find(at: int, neighbour: _Window) -> _Window | None:
            low, high = neighbour.rows
            border: dict[str, int] = {"stop": low} if at < window else {"first": high}
            return self._find(epoch, at, **border)

        found = gather_windows(own, window, epoch.windows, span, find)
        return found[0].rows[0], np.concatenate([each.measures for each in found]), own.positions

    def _cut(self, epoch: DividedEpoch, window: int) -> WindowCuts:
        """Where the steps begin of which a window has rows, all of which are known by now."""
        key = epoch.number, epoch.assignment
        if key not in self._cuts:
            for other in [other for other in self._cuts if other[0] < epoch.number - 1]:
                del self._cuts[other]
            at = epoch.counts.first_window
            while at + 1 < epoch.windows and epoch.first_row(at + 1) <= epoch.assignment.start_row:
                at += 1
            self._cuts[key] = StepCuts(epoch.assignment, at)
        cuts = self._cuts[key]
        first, stop = epoch.rows_of(window)
        while not cuts.is_complete and cuts.starts[-1] < stop:
            at, row = cuts.next_window, epoch.first_row(cuts.next_window)
            own = self._find(epoch, at, first=row)
            assert own is not None, "rows are measured before they are placed"
            cuts.add(own.measures[cuts.next_row - row :], is_last=at + 1 == epoch.windows)
        begin = max(0, bisect_right(cuts.starts, first) - 1)
        end = max(begin, bisect_left(cuts.starts, stop))
        starts = np.array(cuts.starts[begin : end + 1], np.int64)
        return WindowCuts(starts, cuts.is_complete and end + 1 >= len(cuts.starts))

    def _order(self, epoch: int, window: int, rows: int, first_row: int) -> WindowOrder:
        return order_window(seed=self._seed, epoch=epoch, window=window, rows=rows, first_row=first_row)

    def place(self, epoch: DividedEpoch, window: int, lay_out: LayOut) -> WindowPlaces:
        """Compute where the rows of a window go."""
        plan, assignment = self._plan(epoch.number, window), epoch.assignment
        cuts = self._cut(epoch, window) if assignment.ends_by_tokens else None
        low, found, positions = self.around(epoch, window, cuts)
        rows, total = epoch.rows_of(window), epoch.total
        order = self._order(epoch.number, window, rows[1] - rows[0], rows[0])
        if cuts is not None:
            divided = divide_cut_rows(
                assignment, window=rows, total=total, low=low, measures=found, cuts=cuts
            )
        else:
            costs = epoch.balance.costs(found)
            divided = divide_rows(assignment, window=rows, total=total, low=low, costs=costs, lengths=found)
        layouts, numbers = lay_out(divided)
        by_stored_row = numbers[positions]
        of_blocks = plan.select(epoch.known)
        assert of_blocks is not None, "rows are measured before they are placed"
        before: Ints = np.append(0, np.cumsum([len(each) for each in of_blocks], dtype=np.int64))
        given = np.split(by_stored_row, before[1:-1]) if of_blocks else []
        return WindowPlaces(
            plan,
            order,
            layouts,
            before,
            given_rows=tuple(given),
            imbalances=divided.imbalances,
            padded_lengths=divided.padded_lengths,
            left_out=divided.left_out,
            list_limit=find_list_limit(epoch.balance, of_blocks),
        )
