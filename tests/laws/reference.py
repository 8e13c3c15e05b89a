"""Reference implementation of the laws with plain lists: slow, obvious, and close to their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.source import BlockTable
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut, plan_epoch
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.step_balance import balance_steps
from windrow.shuffle.order.window_order import order_window

__all__ = ["Assigned", "assign_as_lists", "divide_by_cost", "fits_budget", "group_by_length", "order_epoch"]


@dataclass(frozen=True)
class Assigned:
    """The rows of an epoch that each shard receives.

    Attributes
    ----------
    batches
        [shard][step] -> rows of the epoch's order.
    padded, left_out
        Number of repeated rows, and of rows that no shard receives.
    """

    batches: list[list[list[int]]]
    padded: int
    left_out: int

    def stream(self, shard: int) -> list[int]:
        """All rows of a shard in order."""
        return [row for batch in self.batches[shard] for row in batch]


def assign_as_lists(
    total: int, shards: int, batch_rows: int, equal: Equal, *, drop_last: bool = False, start: int = 0
) -> Assigned:
    """Assign rows [start, total) to shards according to law 3."""
    n, B = shards, batch_rows
    batches: list[list[list[int]]] = [[] for _ in range(n)]
    step = 0
    while start + (step + 1) * n * B <= total:
        for t in range(n):
            first = start + step * n * B + t * B
            batches[t].append(list(range(first, first + B)))
        step += 1
    rest = list(range(start + step * n * B, total))
    padded, left_out = 0, len(rest)
    if rest and not drop_last:
        shares = _share_rest(rest, n, equal)
        given = sum(len(share) for share in shares)
        padded, left_out = max(0, given - len(rest)), max(0, len(rest) - given)
        for t in range(n):
            if shares[t]:
                batches[t].append(shares[t])
    return Assigned(batches, padded, left_out)


def divide_by_cost(
    total: int,
    shards: int,
    batch_rows: int,
    equal: Equal,
    balance: Balance,
    measures: Sequence[Any],
    *,
    drop_last: bool = False,
    start: int = 0,
) -> Assigned:
    """Assign rows [start, total) to shards according to law 11; ``measures`` has that of each row below ``total``.

    Of a packed sequence, it is a list with the tokens of each part of a document. Of a batch, the rows of the first
    microbatch come first.
    """
    if balance.budget is not None:
        return _divide_by_tokens(total, shards, equal, balance, measures, drop_last=drop_last, start=start)
    plain = assign_as_lists(total, shards, batch_rows, equal, drop_last=drop_last, start=start)
    costs = np.array([_find_cost(balance, measure) for measure in measures])
    batches: list[list[list[int]]] = [[] for _ in range(shards)]
    for step in range(max(map(len, plain.batches))):
        sizes = [len(batch[step]) if step < len(batch) else 0 for batch in plain.batches]
        first = start + step * shards * batch_rows
        rows = list(range(first, min(first + shards * batch_rows, total)))
        is_padded = equal == "pad" and len(rows) < shards * batch_rows
        is_free = balance.rows == "free" and min(sizes) > 0 and not is_padded
        shares = _assign_by_cost(rows[: sum(sizes)], costs, shards, None if is_free else np.array(sizes))
        repeats = 0
        for shard, own in enumerate(shares):
            batch = [row for part in _assign_by_cost(own, costs, balance.microbatches, None) for row in part]
            missing = sizes[shard] - len(batch) if is_padded else 0
            batch += [rows[(repeats + k) % len(rows)] for k in range(missing)]
            repeats += missing
            if batch:
                batches[shard].append(batch)
    return Assigned(batches, plain.padded, plain.left_out)


def _find_cost(balance: Balance, measure: Any) -> float:
    segments = measure if isinstance(measure, list) else [measure]
    return sum(float(balance.costs(np.array([each], np.float32))[0]) for each in segments)


def _divide_by_tokens(
    total: int,
    shards: int,
    equal: Equal,
    balance: Balance,
    measures: Sequence[float],
    *,
    drop_last: bool,
    start: int,
) -> Assigned:
    """The same where steps end by their tokens: each is the longest that fits; padded, one found by bisection."""
    budget = balance.budget
    assert budget is not None
    most = budget.tokens
    if budget.long_rows == "truncate":
        measures = [min(measure, most) for measure in measures]
    costs = balance.costs(np.array(measures, np.float32))
    tokens = [max(1, measure) for measure in measures]
    left = [row for row in range(start, total) if tokens[row] <= most]
    batches: list[list[list[int]]] = [[] for _ in range(shards)]
    padded, given = 0, 0
    while left:
        sums = np.cumsum([tokens[row] for row in left])
        longest = int((sums <= shards * most).sum())

        def fits(count: int, left: list[int] = left) -> bool:
            return fits_budget(left[:count], tokens, costs, shards, balance)

        if budget.padded:
            count = _bisect(fits, min(longest, shards), longest)
        else:
            count = next(count for count in range(longest, 0, -1) if fits(count))
        rows, is_rest = left[:count], count == longest == len(left)
        if (is_rest and drop_last) or (count < shards and equal is True):
            break
        left, given = left[count:], given + count
        shares, repeats = _assign_by_cost(rows, costs, shards, None), 0
        for shard, own in enumerate(shares):
            batch = [row for part in _assign_by_cost(own, costs, balance.microbatches, None) for row in part]
            if not batch and equal == "pad":
                batch, repeats = [rows[repeats % count]], repeats + 1
            if batch:
                batches[shard].append(batch)
        padded += repeats
    return Assigned(batches, padded, total - start - given)


def fits_budget(
    rows: list[int], tokens: Sequence[float], costs: NDArray[np.float64], shards: int, balance: Balance
) -> bool:
    """Whether a step of some rows leaves every shard within its budget of tokens."""
    assert balance.budget is not None
    for share in _assign_by_cost(rows, costs, shards, None):
        parts = [[row] for row in share]
        if balance.budget.padded:
            parts = _assign_by_cost(share, costs, balance.microbatches, None)
        if (
            sum(len(part) * max(tokens[row] for row in part) for part in parts if part)
            > balance.budget.tokens
        ):
            return False
    return True


def _bisect(fits: Callable[[int], bool], least: int, most: int) -> int:
    """A number of rows that fit, ``least`` or more, where one more does not."""
    while least < most:
        middle = (least + most) // 2 + 1
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def _assign_by_cost(
    rows: list[int], costs: NDArray[np.float64], bins: int, room: NDArray[np.int64] | None
) -> list[list[int]]:
    found = balance_steps(costs[rows], np.array([0, len(rows)]), bins, room).tolist()
    return [[row for row, to in zip(rows, found, strict=True) if to == each] for each in range(bins)]


def _share_rest(rest: list[int], n: int, equal: Equal) -> list[list[int]]:
    r = len(rest)
    if equal == "pad":
        share = -(-r // n)
        places = [rest[p] if p < r else rest[p % r] for p in range(share * n)]
        return [places[t * share : (t + 1) * share] for t in range(n)]
    sizes = [r // n + (equal is False and t < r % n) for t in range(n)]
    firsts = [sum(sizes[:t]) for t in range(n)]
    return [rest[first : first + size] for first, size in zip(firsts, sizes, strict=True)]


def group_by_length(rows: list[Any], first_row: int, steps: int, step_rows: int) -> list[Any]:
    """The rows of a window, which begins at an epoch's row, in their order by law 11."""
    whole = [
        step
        for step in range((first_row + len(rows)) // step_rows)
        if first_row <= step * step_rows <= (step + 1) * step_rows <= first_row + len(rows)
    ]
    found = list(rows)
    for at in range(0, len(whole), steps):
        group = whole[at : at + steps]
        first, stop = group[0] * step_rows - first_row, (group[-1] + 1) * step_rows - first_row
        by_length = sorted(range(first, stop), key=lambda row: (rows[row], row))
        chunks = [sorted(by_length[k : k + step_rows]) for k in range(0, stop - first, step_rows)]
        found[first:stop] = [rows[row] for chunk in sorted(chunks) for row in chunk]
    return found


def order_epoch(
    blocks: BlockTable,
    values: Sequence[Sequence[Any]],
    *,
    cut: WindowCut,
    seed: int | None,
    epoch: int,
    shuffles_blocks: bool = False,
    sort_key: Callable[[Any], Any] | None = None,
    groups: tuple[int, int] | None = None,
) -> list[Any]:
    """The values of an epoch in their order; ``values`` has those that each block delivers.

    Each window is shuffled, unless only its blocks are, and then sorted if there is a key. ``groups``: of how many
    steps the rows are sorted by length, which is their value, and the rows of a step.
    """
    plan = plan_epoch(blocks, cut=cut, seed=seed, epoch=epoch, sorts_windows=not shuffles_blocks)
    order: list[Any] = []
    for window in range(plan.windows):
        stored = [value for block in plan.window_blocks(window) for value in values[block]]
        row_seed = None if shuffles_blocks else seed
        rows = order_window(seed=row_seed, epoch=epoch, window=window, rows=len(stored), first_row=len(order))
        placed: list[Any] = [None] * len(stored)
        for value, row in zip(stored, rows.epoch_rows(0, len(stored)).tolist(), strict=True):
            placed[row - len(order)] = value
        if groups is not None:
            placed = group_by_length(placed, len(order), *groups)
        order.extend(placed if sort_key is None else sorted(placed, key=sort_key))
    return order
