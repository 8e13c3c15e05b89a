"""Draws sources at random, row by row, so that each is always less than one row away from its share.

Row k of a source, from 1, may come once the source's share of the rows exceeds k - 1, and must have come when it
reaches k. An order that puts each row within these bounds holds the shares. This is the quota rule of apportionment.
There is such an order for any shares: the one that takes the earliest deadline first.

Among the rows that may come next, one is drawn. Say that row k came anywhere between its bounds with equal chances.
Then the chance that it comes next, given that it has not come yet, is the next row's part of what is left between
them. The draw is by these chances. They add up to about one; where they add up to less, the rest is drawn by the
shares. So the first row comes from each source exactly as often as its share says. In other beginnings, a source
comes as often as it is due to within some 15 %.

A draw must leave the rest possible. It does if, for each t, no more rows are left that must have come by t than there
are places up to t; the difference is the *slack* at t. A row with the deadline d takes one from the slack of all t
before d. So where some t has no slack, rows with later deadlines cannot come now, and all others can.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from windrow.shuffle.kernels import native, row_positions

Ints = NDArray[np.int64]


def draw_sources(weights: Ints, rows: int, key: bytes) -> NDArray[np.int32]:
    """(rows,) the source of each of the first rows of a period, which has as many rows as the weights add up to.

    Fewer rows are the beginning of more rows.

    Parameters
    ----------
    weights
        (sources,) integers of 0 or more, whose sum is below 2^31.
    rows
        From 1 to the sum of the weights.
    key
        Its first 16 bytes choose the order.

    Examples
    --------
    >>> draw_sources(np.array([3, 1]), 4, bytes(16)).tolist()
    [0, 0, 1, 0]
    """
    # 53 bits make a double from 0 to less than 1
    words = Philox(key=np.frombuffer(key[:16], "<u8")).random_raw(2 * rows)
    draws = ((words >> np.uint64(11)) * 2.0**-53).reshape(rows, 2)
    total = int(weights.sum())
    # a row that may come at a place is due at most one distance of its source behind it
    horizon = min(total, rows + -(-total // int(weights[weights > 0].min())))
    if native.LIBRARY is not None:
        return row_positions.draw_sources(weights, draws, horizon)
    return np.array(_draw(weights.tolist(), draws.tolist(), horizon), np.int32)


def _draw(weights: Sequence[int], draws: Sequence[Sequence[float]], horizon: int) -> list[int]:
    """The same as the kernel, in Python."""
    total, slack = sum(weights), _first_slack(weights, horizon)
    # the places without slack, the first one last: those that follow are before it
    tight = [horizon, *(np.flatnonzero(slack[1:horizon] == 0)[::-1] + 1).tolist()]
    # of the next row of each source, as in the kernel
    begins = [0] * len(weights)
    releases = [0 if weight else total for weight in weights]
    deadlines = [-(-total // weight) if weight else total for weight in weights]
    found = []
    for place, (first_draw, second_draw) in enumerate(draws):
        while tight[-1] <= place:
            tight.pop()
        # up to each source, the chances and the weights of those that may come
        chance, chances, share, shares = 0.0, [], 0, []
        for source, weight in enumerate(weights):
            if releases[source] <= place and deadlines[source] <= tight[-1]:
                end = begins[source] + total
                begin = max(begins[source], place * weight)
                # Python would divide integers by another rule than doubles
                chance += float(min(end, (place + 1) * weight) - begin) / float(end - begin)
                share += weight
            chances.append(chance)
            shares.append(share)
        drawn = first_draw * max(chance, 1.0)
        by_share = int(second_draw * share)
        source = bisect_right(chances, drawn) if drawn < chance else bisect_right(shares, by_share)
        found.append(source)
        before = slack[place + 2 : deadlines[source]]
        before -= 1
        tight += (np.flatnonzero(before == 0)[::-1] + place + 2).tolist()
        begins[source] += total
        releases[source] = begins[source] // weights[source]
        deadlines[source] = -(-(begins[source] + total) // weights[source])
    return found


def _first_slack(weights: Sequence[int], horizon: int) -> Ints:
    """(horizon + 1,) the slack at each place before the first row."""
    total, slack = sum(weights), np.arange(horizon + 1)
    for weight in weights:
        # how many rows of a source must have come
        slack -= np.arange(horizon + 1) * weight // total
    return slack
