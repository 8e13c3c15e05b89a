"""Divides the rows that a source's window has in the steps of a mixture among shards, by their costs.

Rows of other sources come between them, and what these cost is not known when the window is placed: a source with a
small share has windows that reach over many of the others'. So the rows that a window has in a step, and in a round,
since a shard fetches rounds one by one, are divided by themselves: a *group*.

Where each shard keeps as many rows as without balance, the rows of a group change places with each other. Elsewhere,
each group begins with the bin at which the one before it ends, by the number of its rows, which follows from the
shares. So all bins get rows where there are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_balance import balance_steps
from windrow.shuffle.order.value_hash import mix_words

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The rows of a source's window in a mixture, of which each can be a packed sequence.

    ``counts`` gives the rows of each source, (sources, rows), before some of the mixture's rows.
    """

    source: int
    counts: Callable[[Ints], Ints]
    rows: Ints  # (rows,) the mixture's row of each; -1 for those that do not come
    costs: NDArray[np.float64]
    # (rows,) whether another window holds a part of it too, so that both must find its place without the costs
    is_shared: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DividedRows:
    """Where these rows go. ``rows`` are the mixture's rows whose places they take, and ``shards`` -1 for none."""

    rows: Ints
    shards: Ints


def divide_source(assignment: ShardAssignment, own: SourceRows, total: int, round_rows: int) -> DividedRows:
    """Divide the rows of a source's window.

    Parameters
    ----------
    assignment
        That of the mixture, with sequences as its rows.
    total
        The row at which the mixture, or the leg, ends.
    round_rows
        Of the mixture.
    """
    shards = _assign(assignment, own.rows, total)
    rows = own.rows
    if assignment.cost_balance.rows == "equal":
        movable = np.where(own.is_shared, -1, own.rows)
        exchanged = exchange_rows(assignment, movable, own.costs, total, round_rows)
        rows = np.where(own.is_shared, own.rows, exchanged)
        shards = _assign(assignment, rows, total)
    else:
        groups = _Groups(assignment, own, total, round_rows)
        free = np.flatnonzero((shards >= 0) & groups.is_free(own.rows))
        shards[free] = groups.divide_units(free)
    return DividedRows(rows, shards)


def _assign(assignment: ShardAssignment, rows: Ints, total: int) -> Ints:
    """(rows,) the shard of each row without costs, or -1."""
    known = rows >= assignment.start_row
    inside = np.where(known, rows, assignment.start_row)
    shards, _ = assignment.assign_rows(inside, total)
    found = np.zeros(len(rows), np.int64) if shards is None else shards.astype(np.int64)
    found[~known | (found >= assignment.shards) | (rows >= total)] = -1
    return found


class _Groups:
    """The groups of a window's rows."""

    def __init__(self, assignment: ShardAssignment, own: SourceRows, total: int, round_rows: int) -> None:
        self._assignment, self._own, self._total, self._round_rows = assignment, own, total, round_rows
        self._trainers = assignment.trainers
        self._unit = self._trainers * assignment.batch_rows
        # where the last unit begins, if it is not full
        start = assignment.start_row
        self._rest = start + max(0, total - start) // self._unit * self._unit

    def is_free(self, rows: Ints) -> NDArray[np.bool_]:
        """(rows,) whether a shard can have any number of rows of the unit that each lies in."""
        rest = self._total - self._rest
        if self._assignment.equal != "pad" and rest >= self._trainers:
            return np.ones(len(rows), np.bool_)
        return rows < self._rest

    def divide_units(self, at: Ints) -> Ints:
        """(rows,) the shards of the rows ``at``, where these are free."""
        rows, start = self._own.rows[at], self._assignment.start_row
        units = (rows - start) // self._unit
        to = self._divide(at, start + units * self._unit)
        return units % self._assignment.workers * self._trainers + to

    def _divide(self, at: Ints, begins: Ints) -> Ints:
        """(rows,) the bin of each row ``at``, given where its unit begins."""
        own = self._own
        rows = own.rows[at]
        rounds = rows // self._round_rows
        # a shared sequence is a group by itself
        alone = np.where(own.is_shared[at], rows, -1)
        order = np.lexsort((rows, alone, rounds, begins))
        is_first = np.zeros(len(order), np.bool_)
        for each in (begins, rounds, alone):
            is_first |= np.diff(each[order], prepend=-2).astype(np.bool_)
        (firsts,) = np.nonzero(is_first)
        first = order[firsts]
        slots = self._find_slots(rows[first])
        starts = np.append(firsts, len(order)).astype(np.int64)
        to = balance_steps(own.costs[at][order], starts, self._trainers, None)
        sizes = np.diff(starts)
        # a group of few rows has the first bins, of which another one gets the most expensive row each time
        turned = (to + np.repeat(spread(rows[first]), sizes)) % np.repeat(
            np.minimum(sizes, self._trainers), sizes
        )
        found = np.empty(len(at), np.int64)
        found[order] = (turned + np.repeat(slots, sizes)) % self._trainers
        return found

    def _find_slots(self, rows: Ints) -> Ints:
        """(groups,) how many rows of its unit come in groups before, given the first row of each group."""
        start, rounds = self._assignment.start_row, rows // self._round_rows
        begins = start + (rows - start) // self._unit * self._unit
        kept = self._total
        if self._assignment.equal is True:
            kept -= (self._total - self._rest) % self._trainers
        stops = np.minimum(begins + self._unit, kept)
        low = np.maximum(begins, rounds * self._round_rows)
        high = np.minimum(stops, (rounds + 1) * self._round_rows)
        counts, source = self._own.counts, self._own.source
        before = counts(low)
        others = (counts(high)[:source] - before[:source]).sum(axis=0)
        found: Ints = low - begins + others + counts(rows)[source] - before[source]
        return found


def spread(rows: Ints) -> Ints:
    """(rows,) by how many bins to turn those of rows that change places, given the first row: as good as at random.

    Otherwise, the first bin would always get the most expensive row of each source.
    """
    return (mix_words(rows.astype(np.uint64)) >> np.uint64(1)).astype(np.int64)


def order_bins(rows: Ints, bins: int) -> Ints:
    """(rows, bins) the order in which bins get rows that change places, given the first row: as good as at random.

    Where only some bins have room, turning them would favour those behind the others.
    """
    found: Ints = np.argsort(spread(rows[:, None] * bins + np.arange(bins)), axis=1, kind="stable")
    return found


def exchange_rows(
    assignment: ShardAssignment,
    rows: Ints,
    costs: NDArray[np.float64],
    total: int,
    round_rows: int,
) -> Ints:
    """(rows,) where the rows of a window come, so that the shards of each step get about the same cost of them.

    Parameters
    ----------
    rows
        (rows,) the mixture's row of each stored row; -1 for those that do not come.
    costs
        (rows,) what each stored row costs.
    total
        The row at which the mixture, or the leg, ends.
    round_rows
        Of the mixture.

    Examples
    --------
    >>> rows, costs = np.array([1, 2, 4, 7]), np.array([9.0, 8, 1, 1])
    >>> exchange_rows(ShardAssignment(2, 4), rows, costs, 8, 8).tolist()
    [4, 1, 2, 7]
    """
    shards = _assign(assignment, rows, total)
    own = np.flatnonzero(shards >= 0)
    if assignment.shards == 1 or not len(own):
        return rows
    own = own[np.argsort(rows[own], kind="stable")]
    places, shards = rows[own], shards[own]
    # worker processes of a trainer take its steps in turn
    steps = (places - assignment.start_row) // (assignment.step_rows // assignment.workers)
    begins = np.diff(steps, prepend=-1).astype(bool) | np.diff(places // round_rows, prepend=-1).astype(bool)
    starts = np.append(np.flatnonzero(begins), len(own)).astype(np.int64)
    part = np.cumsum(begins) - 1
    room = np.bincount(part * assignment.shards + shards, minlength=(len(starts) - 1) * assignment.shards)
    ordered = order_bins(places[starts[:-1]], assignment.shards)
    room = np.take_along_axis(room.reshape(-1, assignment.shards), ordered, axis=1)
    to = ordered[part, balance_steps(costs[own], starts, assignment.shards, room.astype(np.int64))]
    # the rows of a shard take its places in their order
    found = rows.copy()
    found[own[np.lexsort((to, part))]] = places[np.lexsort((shards, part))]
    return found
