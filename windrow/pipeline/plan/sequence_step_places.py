"""Where the tokens of a window go if costs divide its packed sequences: what their documents cost, window by window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.neighbouring_windows import DividedEpoch, LatestWindows, LayOut, gather_windows
from windrow.pipeline.plan.window_places import WindowPlaces, WindowPlan, cost_documents, order_documents
from windrow.pipeline.tasks.task import Documents
from windrow.shuffle.order.step_sequences import divide_sequences, find_sequences
from windrow.shuffle.order.window_order import WindowOrder, cut_documents

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Window:
    """A window whose documents are counted."""

    rows: tuple[int, int]  # of the epoch, from the first token to behind the last one
    order: WindowOrder
    documents: tuple[Documents, ...]  # by block
    # (sequences,) what the documents here cost in each sequence that has tokens here
    costs: NDArray[np.float64]


class CostedSequences:
    """The documents of windows, and what they cost in each sequence; the latest windows are kept.

    ``plan`` gives the blocks of a window of an epoch.
    """

    def __init__(self, plan: Callable[[int, int], WindowPlan], job: Job) -> None:
        self._plan = plan
        self._job = job
        self._kept: LatestWindows[tuple[str, int, int, int], _Window] = LatestWindows()

    def _find(self, epoch: DividedEpoch, window: int) -> _Window | None:
        """A window of an epoch; None if its documents, or those before, have not been counted."""
        first, stop = epoch.counts.first_row(window), epoch.counts.first_row(window + 1)
        if first is None or stop is None:
            return None
        rows = first, stop
        key = epoch.balance.cost, epoch.number, window, first
        return self._kept.get(key, lambda: self._make(epoch, window, rows))

    def _make(self, epoch: DividedEpoch, window: int, rows: tuple[int, int]) -> _Window | None:
        key = epoch.number, window
        counted = self._plan(*key).select(epoch.known)
        if counted is None:
            return None
        order, documents = order_documents(self._job, key, rows[0], counted)
        costs = cost_documents(epoch.balance, rows, documents, epoch.assignment.sequence_rows)
        return _Window(rows, order, documents, costs)

    def _find_costs(self, epoch: DividedEpoch, window: int) -> tuple[_Window, int, NDArray[np.float64]]:
        """A window, and the costs of the sequences of its steps as far as they are known.

        Returns the number of the first of these sequences, then (sequences,) their costs.
        """
        own = self._find(epoch, window)
        assert own is not None, "documents are counted before they are placed"
        span = epoch.steps_around(own.rows)
        found = gather_windows(own, window, epoch.windows, span, lambda at, _: self._find(epoch, at))
        seq_len = epoch.assignment.sequence_rows
        low, high = find_sequences((found[0].rows[0], found[-1].rows[1]), seq_len)
        costs = np.zeros(high - low)
        for each in found:
            # a sequence in several windows costs what its documents in all of them do
            at = each.rows[0] // seq_len - low
            costs[at : at + len(each.costs)] += each.costs
        return own, low, costs

    def place(self, epoch: DividedEpoch, window: int, lay_out: LayOut, rows: Ints) -> WindowPlaces:
        """Compute where the tokens of a window go; ``rows`` holds the tokens of every block of the dataset."""
        plan, assignment = self._plan(epoch.number, window), epoch.assignment
        own, low, costs = self._find_costs(epoch, window)
        divided = divide_sequences(assignment, window=own.rows, total=epoch.total, low=low, costs=costs)
        layouts, numbers = lay_out(divided)
        seq_len = assignment.sequence_rows
        documents = tuple(_number_pieces(each, own.rows[0], numbers, seq_len) for each in own.documents)
        return WindowPlaces(
            plan,
            own.order,
            layouts,
            plan.rows_before(rows),
            documents,
            imbalances=divided.imbalances,
        )


def _number_pieces(
    documents: Documents, first_row: int, numbers: NDArray[np.uint32] | Ints, seq_len: int
) -> Documents:
    """Documents of a window that begins at ``first_row``, with the number of each of their pieces.

    ``numbers`` has that of the first token of each sequence that lies in the window.
    """
    rows, _, sequences = cut_documents(documents.starts, documents.lengths, seq_len)
    begins = np.maximum(sequences * seq_len, first_row)
    found = numbers[sequences - first_row // seq_len].astype(np.int64) + rows - begins
    fits = not len(found) or int(found.max()) + seq_len < 2**32
    return replace(documents, numbers=found.astype(np.uint32) if fits else found)
