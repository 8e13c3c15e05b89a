"""Where the rows of a window go if its steps are divided by cost: what rows measure, in the order of the epoch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.epoch_shape import EpochCounts
from windrow.pipeline.plan.window_places import WindowPlaces, WindowPlan
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_rows import divide_rows
from windrow.shuffle.order.step_runs import lay_out_steps
from windrow.shuffle.order.window_order import WindowOrder, order_window

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

# a window, the one before, and the one behind, of two epochs
_KEPT_WINDOWS = 6


class MeasuredRows:
    """What rows measure, window by window in the order of the epoch; the latest windows are kept.

    ``plan`` gives the blocks of a window of an epoch, and ``seed`` the order of its rows.
    """

    def __init__(self, plan: Callable[[int, int], WindowPlan], seed: int | None) -> None:
        self._plan = plan
        self._seed = seed
        # with the positions of the window's stored rows
        self._kept: OrderedDict[tuple[str, int, int], tuple[Floats, Ints]] = OrderedDict()

    def of_window(
        self, column: str, epoch: int, window: int, measures: Sequence[Floats | None]
    ) -> tuple[Floats, Ints] | None:
        """(rows,) the measures of a window's rows in their order, and the positions of its stored rows.

        None if a block has not been measured.
        """
        key = column, epoch, window
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = [measures[block] for block in self._plan(epoch, window).blocks.tolist()]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        stored = np.concatenate([np.zeros(0, np.float32), *known])
        positions = self._order(epoch, window, len(stored), 0).epoch_rows(0, len(stored))
        ordered = np.empty_like(stored)
        ordered[positions] = stored
        self._kept[key] = ordered, positions
        if len(self._kept) > _KEPT_WINDOWS:
            self._kept.popitem(last=False)
        return self._kept[key]

    def around(
        self,
        epoch: int,
        window: int,
        counts: EpochCounts,
        measures: Sequence[Floats | None],
        assignment: ShardAssignment,
    ) -> tuple[int, Floats, Ints]:
        """The measures of a window's rows, and of others of its first and last step as far as they are known.

        Returns the epoch's row of the first of them, (rows,) the measures, and the positions of the window's stored
        rows.
        """
        balance = assignment.balance
        assert balance is not None, "rows are divided by cost"
        first, stop = counts.first_row(window), counts.first_row(window + 1)
        own = self.of_window(balance.column, epoch, window, measures)
        assert first is not None, "rows are counted before they are placed"
        assert stop is not None, "rows are counted before they are placed"
        assert own is not None, "rows are measured before they are placed"
        found, low, high = [own[0]], first, stop
        begin = first - max(0, first - assignment.start_row) % assignment.step_rows
        at = window - 1
        while low > begin and at >= 0:
            before = self.of_window(balance.column, epoch, at, measures)
            if before is None:
                break
            found.insert(0, before[0])
            low, at = low - len(before[0]), at - 1
        end = stop + -max(0, stop - assignment.start_row) % assignment.step_rows
        at = window + 1
        while high < end and at < len(counts.shape.windows):
            behind = self.of_window(balance.column, epoch, at, measures)
            if behind is None:
                break
            found.append(behind[0])
            high, at = high + len(behind[0]), at + 1
        return low, np.concatenate(found), own[1]

    def _order(self, epoch: int, window: int, rows: int, first_row: int) -> WindowOrder:
        return order_window(seed=self._seed, epoch=epoch, window=window, rows=rows, first_row=first_row)

    def place(
        self,
        key: tuple[int, int],
        counts: EpochCounts,
        measures: Sequence[Floats | None],
        assignment: ShardAssignment,
        total: int | None,
        destinations: Sequence[tuple[int, ...]],
        *,
        run_rows: int,
        slices: int,
    ) -> WindowPlaces:
        """Compute where the rows of window ``key`` (epoch and window) go.

        ``measures`` are those of each block's rows, ``total`` the epoch's rows if they are known.
        """
        epoch, window = key
        plan = self._plan(epoch, window)
        low, found, positions = self.around(epoch, window, counts, measures, assignment)
        first, stop = counts.first_row(window), counts.first_row(window + 1)
        assert first is not None, "rows are counted before they are placed"
        assert stop is not None, "rows are counted before they are placed"
        order = self._order(epoch, window, stop - first, first)
        divided = divide_rows(assignment, window=(first, stop), total=total, low=low, measures=found)
        layouts, numbers = lay_out_steps(divided, destinations=destinations, run_rows=run_rows, slices=slices)
        by_stored_row = numbers[positions]
        of_blocks = [measures[block] for block in plan.blocks.tolist()]
        sizes = [0 if each is None else len(each) for each in of_blocks]
        before: Ints = np.append(0, np.cumsum(sizes, dtype=np.int64))
        given = np.split(by_stored_row, before[1:-1]) if sizes else []
        return WindowPlaces(
            plan, order, layouts, before, given_rows=tuple(given), imbalances=divided.imbalances
        )
