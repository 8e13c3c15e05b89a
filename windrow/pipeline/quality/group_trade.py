"""What groups by length save in padding, and what they take from the shuffle, computed from the lengths of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.quality.step_costs import Measures, StepCosts, measure_steps
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.window_order import order_window

Ints = NDArray[np.int64]

# of the two orders in which rows may meet
_SEED = -3


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
