"""Cuts an epoch into steps by the tokens of its rows, as `TokenBudget` says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_balance import find_step


class StepCuts:
    """Where the steps of an epoch begin, as far as what its rows measure is known.

    ``starts`` holds the epoch's row of each step so far, and the end of the last one. Rows are added window by window,
    from the one on that has the assignment's first row.
    """

    def __init__(self, assignment: ShardAssignment, window: int) -> None:
        balance = assignment.cost_balance
        assert balance.budget is not None, "steps are cut by tokens"
        self._balance, self._budget, self._bins = balance, balance.budget, assignment.shards
        # whether what is left at the end is a step too: fewer rows than bins, and less than the budget allows
        self._keeps_few, self._keeps_rest = assignment.equal is not True, not assignment.drop_last
        self.starts = [assignment.start_row]
        self.next_row, self.next_window = assignment.start_row, window
        self.is_complete = False
        self._measures = np.zeros(0, np.float32)

    def add(self, measures: NDArray[np.float32], *, is_last: bool, most_steps: int | None = None) -> None:
        """Add the rows of `next_window` from `next_row` on, and cut the steps that are certain, at most so many."""
        self.next_row, self.next_window = self.next_row + len(measures), self.next_window + 1
        known = np.concatenate([self._measures, measures])
        tokens, costs = self._budget.count(known, self._balance.column), self._balance.costs(known)
        (kept,) = np.nonzero(tokens)
        tokens, costs = tokens[kept], costs[kept]
        sums = np.append(0, np.cumsum(tokens))
        at, first = 0, self.starts[-1]
        while at < len(kept):
            # padding only adds to the tokens of a step
            most = int(np.searchsorted(sums, sums[at] + self._bins * self._budget.tokens, side="right")) - 1
            if most == len(kept) and not is_last:
                # later rows may belong to the step
                break
            rows = find_step(
                costs[at:most],
                tokens[at:most],
                self._bins,
                self._budget.tokens,
                padded_parts=self._balance.microbatches if self._budget.padded else 0,
            )
            is_few, is_rest = rows < self._bins, at + rows == len(kept) == most
            if (is_few and not self._keeps_few) or (is_rest and not self._keeps_rest):
                break
            at += rows
            self.starts.append(first + int(kept[at - 1]) + 1)
            if len(self.starts) - 1 == most_steps:
                is_last = is_last and at == len(kept)
                break
        self._measures = known[self.starts[-1] - first :]
        self.is_complete = is_last
