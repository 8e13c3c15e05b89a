"""Exchanges the rows of a source's window in a mixture, between which rows of other sources come.

Which rows of the mixture are a source's follows from the shares. So rows change places with others of the same window
only: those of one step, and of one round, since a shard fetches rounds one by one. Each shard keeps as many rows of the
source as without balance, and nothing of other sources has to be known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_balance import balance_steps
from windrow.shuffle.order.value_hash import mix_words

Ints = NDArray[np.int64]


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
    shards, _ = assignment.assign_rows(rows, total)
    (own,) = np.nonzero(rows >= assignment.start_row)
    if shards is None or not len(own):
        return rows
    own = own[shards[own] < assignment.shards]
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
