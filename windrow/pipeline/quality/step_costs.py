"""What the batches of each step would cost with a `Balance` and without, and with groups by length.

All of it is computed from the measures of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_rows import divide_rows
from windrow.shuffle.order.window_order import order_window

Floats = NDArray[np.float64]
Measures = NDArray[np.float32]
Ints = NDArray[np.int64]

# of the two orders in which rows may meet
_SEED = -3


@dataclass(frozen=True, eq=False)
class StepCosts:
    """The costs of the batches of each step; with microbatches, of those.

    Attributes
    ----------
    largest, mean
        (steps,) the cost of the most expensive batch, and the mean of all of the step.
    row
        (steps,) the cost of the most expensive row.
    padding
        The share of padding where each batch is padded to its longest row: what is not data of rows x longest row.
    """

    largest: Floats
    mean: Floats
    row: Floats
    padding: float

    @property
    def imbalances(self) -> Floats:
        """(steps,) the most expensive batch over the mean, as ``stats().run.imbalance`` has it."""
        return self.largest / self.mean

    @property
    def unavoidable(self) -> Floats:
        """(steps,) the least imbalance of any division: the mean, or the most expensive row if that is more."""
        return np.maximum(self.mean, self.row) / self.mean

    @property
    def excesses(self) -> Floats:
        """(steps,) the most expensive batch over what is unavoidable."""
        return self.largest / np.maximum(self.mean, self.row)


def measure_steps(
    measures: Measures, assignment: ShardAssignment, cost: Balance, *, is_balanced: bool = True
) -> StepCosts:
    """Divide the rows of an epoch into batches, and measure what they cost.

    Parameters
    ----------
    measures
        (rows,) the number or length of each row, in the epoch's order.
    assignment
        How rows are assigned to shards, without a balance, for one process a trainer.
    cost
        What a row costs, and how rows are divided.
    is_balanced
        Whether they are divided by cost; otherwise as without balance.

    Examples
    --------
    >>> lengths = np.array([9, 8, 7, 6, 1, 1, 0, 0], np.float32)
    >>> for is_balanced in (False, True):
    ...     found = measure_steps(lengths, ShardAssignment(2, 4), Balance("length"), is_balanced=is_balanced)
    ...     print(found.imbalances.tolist(), f"{found.padding:.0%}")
    [1.875] 20%
    [1.0] 53%
    """
    total = len(measures)
    if is_balanced:
        divided = divide_rows(
            replace(assignment, balance=cost),
            window=(0, total),
            total=total,
            low=0,
            costs=cost.costs(measures),
        )
        shape, keys = divided.sizes.shape, divided.keys.astype(np.int64)
    else:
        rows = np.arange(total, dtype=np.int64)
        shards, _ = assignment.assign_rows(rows, total)
        shards = np.zeros_like(rows) if shards is None else shards
        steps = rows // assignment.step_rows
        shape = (int(steps[-1]) + 1 if total else 1, assignment.shards, 1)
        keys = np.where(shards < assignment.shards, steps * assignment.shards + shards, np.prod(shape))
    bins = int(np.prod(shape))
    kept = keys < bins
    keys, lengths, costs = keys[kept], measures[kept].astype(np.float64), cost.costs(measures)[kept]
    batches = np.bincount(keys, costs, minlength=bins).reshape(shape[0], -1)
    longest, row = np.zeros(bins), np.zeros(shape[0])
    np.maximum.at(longest, keys, lengths)
    np.maximum.at(row, keys // (bins // shape[0]), costs)
    padded = float((longest * np.bincount(keys, minlength=bins)).sum())
    mean = batches.mean(axis=1)
    counted = mean > 0
    return StepCosts(
        batches.max(axis=1)[counted],
        mean[counted],
        row[counted],
        1 - float(lengths.sum()) / padded if padded else 0.0,
    )


@dataclass(frozen=True)
class RowLimit:
    """Where single rows cost more than the mean of the shards, so that no division makes a step even.

    Attributes
    ----------
    share
        Of the steps in which the most expensive row does.
    length, quantile
        The greatest number or length up to which all rows could be cut so that none costs more than a mean batch, and
        the share of rows that are not longer.
    batch_rows
        The rows of a batch from which on the mean batch costs as much as the most expensive row.
    """

    share: float
    length: float
    quantile: float
    batch_rows: int


def find_row_limit(measures: Measures, cost: Balance, batch_rows: int, costs: StepCosts) -> RowLimit:
    """Find which rows cost more than a mean batch.

    >>> lengths = np.array([1] * 9 + [91], np.float32)
    >>> balance = Balance("length")
    >>> steps = measure_steps(lengths, ShardAssignment(5, 2), balance)
    >>> find_row_limit(lengths, balance, 2, steps)
    RowLimit(share=1.0, length=1.0, quantile=0.9, batch_rows=10)
    """
    lengths = np.sort(measures)
    spent = cost.costs(lengths)
    rows = len(spent)
    # the mean cost of a row if all longer rows were cut to this one
    cut = (np.cumsum(spent) + np.arange(rows - 1, -1, -1) * spent) / rows
    (fitting,) = np.nonzero(spent <= batch_rows * cut)
    at = int(fitting[-1]) if len(fitting) else 0
    mean = float(spent.mean())
    return RowLimit(
        share=float((costs.row > costs.mean).mean()) if len(costs.mean) else 0.0,
        length=float(lengths[at]),
        quantile=float(np.searchsorted(lengths, lengths[at], side="right")) / rows,
        batch_rows=-int(-float(spent.max()) // mean) if mean else 1,
    )


@dataclass(frozen=True, eq=False)
class GroupTrade:
    """What ``group_by_length=steps`` does to the steps of an epoch.

    Attributes
    ----------
    steps
        Of a group.
    costs
        What its batches cost.
    recurrence
        How many times more often than by chance two rows of a step share a step of the next epoch, too.
    """

    steps: int
    costs: StepCosts
    recurrence: float


def measure_groups(
    measures: Measures, starts: Ints, assignment: ShardAssignment, cost: Balance, steps: int
) -> GroupTrade:
    """Sort the rows of an epoch in groups, and measure its steps.

    Parameters
    ----------
    measures
        (rows,) the number or length of each row, in the epoch's order.
    starts
        (windows + 1,) where its windows begin, and the number of rows.
    assignment, cost
        As for `measure_steps`.
    steps
        Of a group.

    Examples
    --------
    >>> lengths = np.array([9, 1, 8, 2, 1, 9, 2, 8], np.float32)
    >>> how = ShardAssignment(1, 2), Balance("length")
    >>> trade = measure_groups(lengths, np.array([0, 8]), *how, steps=4)
    >>> f"{measure_steps(lengths, *how).padding:.0%}, {trade.costs.padding:.0%}"
    '41%, 0%'
    """
    grouped = replace(assignment, balance=cost.with_groups(steps)).from_row(0, None)
    arranged = _arrange(grouped, measures, starts)
    return GroupTrade(
        steps,
        measure_steps(measures[arranged], assignment, cost),
        _find_recurrence(grouped, measures),
    )


def _arrange(assignment: ShardAssignment, measures: Measures, starts: Ints) -> Ints:
    """(rows,) the rows in their order by length."""
    assert assignment.groups is not None
    order = np.empty(len(measures), np.int64)
    for first, stop in pairwise(starts.tolist()):
        order[first + assignment.groups.arrange(measures[first:stop], first)] = np.arange(first, stop)
    return order


def _find_recurrence(assignment: ShardAssignment, measures: Measures) -> float:
    """How many times more often than by chance rows meet in two random orders of one window."""
    rows, whole = len(measures), len(measures) // assignment.step_rows
    if whole < 2 or assignment.step_rows < 2:
        return 1.0
    step_of = []
    for epoch in range(2):
        shuffled = order_window(seed=_SEED, epoch=epoch, window=0, rows=rows, first_row=0)
        stored = shuffled.stored_rows(np.arange(rows, dtype=np.int64))
        order = stored[_arrange(assignment, measures[stored], np.array([0, rows]))]
        steps = np.empty(rows, np.int64)
        steps[order] = np.arange(rows) // assignment.step_rows
        step_of.append(steps)
    kept = step_of[0] < whole
    _, together = np.unique(step_of[0][kept] * (whole + 1) + step_of[1][kept], return_counts=True)
    met = float((together * (together - 1.0)).sum())
    pairs = whole * assignment.step_rows * (assignment.step_rows - 1.0)
    by_chance = (assignment.step_rows - 1.0) / (rows - 1.0)
    return met / pairs / by_chance
