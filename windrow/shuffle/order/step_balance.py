"""Deals the rows of each step to bins of nearly equal cost: a function of the step's costs and the number of bins."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native, step_bins

Ints = NDArray[np.int64]

# Costs are counted in so many parts of the largest of their step, so that sums are exact on any machine.
_UNITS = 2**31
# Each makes the heaviest bin of a step lighter. Nearly all steps need fewer.
_EXCHANGES = 64
# A step whose heaviest bin is as close to the least possible is not improved further.
_CLOSE = 1024


def balance_steps(
    costs: NDArray[np.float64], starts: Ints, bins: int, room: Ints | None
) -> NDArray[np.int32]:
    """Deal the rows of some steps to bins, so that the cost of the heaviest bin of each step is near the least.

    Rows go, the most expensive first, each to the bin of least cost. Then rows of the heaviest bin are exchanged with
    others as long as that helps. Without ``room``, no bin is empty unless there are fewer rows than bins.

    Parameters
    ----------
    costs
        (rows,) the cost of each row, 0 or more.
    starts
        (steps + 1,) the first row of each step, then the number of rows.
    bins
        The number of bins.
    room
        How many rows each bin takes of a step, (bins,) of any, or (steps, bins); None: any number.

    Returns
    -------
    (rows,) the bin of each row.

    Examples
    --------
    >>> costs = np.array([9.0, 1, 2, 3, 5, 5, 5, 5])
    >>> balance_steps(costs, np.array([0, 4, 8]), 2, None).tolist()
    [0, 1, 1, 1, 0, 1, 0, 1]
    >>> balance_steps(costs, np.array([0, 4, 8]), 2, np.array([2, 2])).tolist()
    [0, 0, 1, 1, 0, 1, 0, 1]
    """
    if not len(costs):
        return np.zeros(0, np.int32)
    whole = _count_in_units(costs, starts)
    if native.LIBRARY is not None:
        return step_bins.balance(whole, starts, bins, room, _EXCHANGES)
    steps = len(starts) - 1
    rooms = [None] * steps if room is None else np.broadcast_to(room, (steps, bins)).tolist()
    found = [
        _balance_step(whole[first:stop].tolist(), bins, taken)
        for first, stop, taken in zip(starts[:-1].tolist(), starts[1:].tolist(), rooms, strict=True)
    ]
    return np.concatenate([np.array(each, np.int32) for each in found])


def find_microbatches(
    costs: NDArray[np.float64], starts: Ints, to: NDArray[np.int32], bins: int, parts: int
) -> NDArray[np.int32]:
    """(rows,) the microbatch of each row of its bin's ``parts``, given the bin ``to`` of each row of some steps.

    >>> find_microbatches(np.array([4.0, 2, 2, 9]), np.array([0, 4]), np.array([0, 0, 0, 1], np.int32), 2, 2).tolist()
    [0, 1, 1, 0]
    """
    if parts == 1 or not len(to):
        return np.zeros(len(to), np.int32)
    batches = np.repeat(np.arange(len(starts) - 1), np.diff(starts)) * bins + to
    order = np.argsort(batches, kind="stable")
    sizes = np.bincount(batches, minlength=(len(starts) - 1) * bins)
    borders = np.append(0, np.cumsum(sizes)).astype(np.int64)
    found = np.empty(len(to), np.int32)
    found[order] = balance_steps(costs[order], borders, parts, None)
    return found


def find_step(
    costs: NDArray[np.float64], tokens: NDArray[np.float64], bins: int, limit: int, *, padded_parts: int = 0
) -> int:
    """How many of some rows make a step: the most that are divided with at most ``limit`` tokens in each bin.

    As many rows as bins are always taken to fit. With ``padded_parts``, a bin has so many microbatches, and the tokens
    of each are its rows times its longest row. Then far fewer rows fit than their sum of tokens allows, so they are
    found by bisection: they fit, and one row more does not.

    >>> lengths = np.array([3.0, 1, 2, 2, 1])
    >>> find_step(lengths, lengths, 2, 4), find_step(lengths, lengths, 2, 4, padded_parts=1)
    (4, 3)
    """
    if native.LIBRARY is not None:
        return step_bins.cut(costs, tokens, bins, limit, _EXCHANGES, _UNITS, padded_parts)

    def fits(rows: int) -> bool:
        return _find_most(costs[:rows], tokens[:rows], bins, padded_parts) <= limit

    least = min(len(tokens), bins)
    sizes = range(least + 1, len(tokens) + 1)
    if padded_parts:
        return least + bisect_left(sizes, True, key=lambda rows: not fits(rows))
    return next((rows for rows in reversed(sizes) if fits(rows)), least)


def _find_most(
    costs: NDArray[np.float64], tokens: NDArray[np.float64], bins: int, padded_parts: int
) -> float:
    """The most tokens of a bin."""
    starts = np.array([0, len(costs)], np.int64)
    found = balance_steps(costs, starts, bins, None)
    if not padded_parts:
        return float(np.bincount(found, tokens, bins).max())
    parts = found * np.int64(padded_parts) + find_microbatches(costs, starts, found, bins, padded_parts)
    longest = np.zeros(bins * padded_parts)
    np.maximum.at(longest, parts, tokens)
    padded = np.bincount(parts, minlength=len(longest)) * longest
    return float(padded.reshape(bins, padded_parts).sum(axis=1).max())


def _count_in_units(costs: NDArray[np.float64], starts: Ints) -> Ints:
    """Costs as whole numbers, in parts of the largest of their step."""
    sizes = np.diff(starts)
    filled = sizes > 0
    largest = np.zeros(len(sizes))
    largest[filled] = np.maximum.reduceat(costs, starts[:-1][filled])
    scale = np.divide(_UNITS, largest, out=np.zeros_like(largest), where=largest > 0)
    return np.minimum(costs * np.repeat(scale, sizes), _UNITS).astype(np.int64)


def find_imbalances(costs: NDArray[Any]) -> tuple[float, ...]:
    """The cost of the most expensive bin over the mean of all, of each step that costs anything.

    >>> find_imbalances(np.array([[3.0, 1.0], [0.0, 0.0]]))
    (1.5,)
    """
    mean, most = costs.mean(axis=1), costs.max(axis=1, initial=0)
    return tuple((most[mean > 0] / mean[mean > 0]).tolist())


def number_rows(keys: NDArray[np.uint32], starts: Ints) -> NDArray[np.uint32]:
    """(rows,) the number of each row, where the rows of group ``keys`` are numbered on from ``starts``.

    >>> number_rows(np.array([1, 0, 1], np.uint32), np.array([10, 20])).tolist()
    [20, 10, 21]
    """
    if native.LIBRARY is not None:
        return step_bins.number(keys, starts)
    order = np.argsort(keys, kind="stable")
    counts = np.bincount(keys, minlength=len(starts))
    within = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.empty(len(keys), np.uint32)
    numbers[order] = starts[keys[order]] + within
    return numbers


def _balance_step(costs: list[int], bins: int, room: Sequence[int] | None) -> list[int]:
    """The Python twin of the kernel, for one step."""
    heap = [(0, 0, each) for each in range(bins) if room is None or room[each] > 0]
    lists: list[list[int]] = [[] for _ in range(bins)]
    loads = [0] * bins
    for row in sorted(range(len(costs)), key=lambda row: -costs[row]):
        _, count, to = heap[0]
        lists[to].append(row)
        loads[to] += costs[row]
        if room is not None and count + 1 == room[to]:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (loads[to], count + 1, to))
    least = max(sum(costs) // bins, max(costs, default=0))
    for _ in range(_EXCHANGES):
        heavy = loads.index(max(loads))
        if loads[heavy] <= least + least // _CLOSE or not _relieve(costs, lists, loads, heavy, room is None):
            break
    found = [0] * len(costs)
    for each, rows in enumerate(lists):
        for row in rows:
            found[row] = each
    return found


def _relieve(costs: list[int], lists: list[list[int]], loads: list[int], heavy: int, moves: bool) -> bool:
    """Exchange a row of the heaviest bin for a cheaper one of another, or move one there; whether any helps."""
    best, chosen = loads[heavy], None
    for other, rows in enumerate(lists):
        gap = loads[heavy] - loads[other]
        if other == heavy or gap < 2 or loads[heavy] - gap // 2 >= best:
            continue
        at = 0
        for row in lists[heavy]:
            while at < len(rows) and costs[row] - costs[rows[at]] < gap // 2:
                at += 1
            candidates = [(rows[k], costs[row] - costs[rows[k]]) for k in (at - 1, at) if 0 <= k < len(rows)]
            exchanges: list[tuple[int | None, int]] = [each for each in candidates if 0 < each[1] < gap]
            if moves and len(lists[heavy]) > 1 and 0 < costs[row] < gap:
                exchanges.append((None, costs[row]))
            for found, less in exchanges:
                heavier = loads[other] + less if less > gap - less else loads[heavy] - less
                if heavier < best:
                    best, chosen = heavier, (row, other, found)
    if chosen is None:
        return False
    row, other, found = chosen
    _take_out(costs, lists, loads, heavy, row)
    if found is not None:
        _take_out(costs, lists, loads, other, found)
        _insert(costs, lists, loads, heavy, found)
    _insert(costs, lists, loads, other, row)
    return True


def _take_out(costs: list[int], lists: list[list[int]], loads: list[int], of: int, row: int) -> None:
    lists[of].remove(row)
    loads[of] -= costs[row]


def _insert(costs: list[int], lists: list[list[int]], loads: list[int], to: int, row: int) -> None:
    """Put a row behind those that cost at least as much."""
    at = next((k for k, other in enumerate(lists[to]) if costs[other] < costs[row]), len(lists[to]))
    lists[to].insert(at, row)
    loads[to] += costs[row]
