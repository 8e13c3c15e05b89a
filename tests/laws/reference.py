"""The laws, written a second time: plain lists, straight from their text, slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windrow.core.source import BlockTable
from windrow.shuffle.order.epoch_plan import WindowCut, plan_epoch
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.window_order import order_window

__all__ = ["Assigned", "deal_list", "order_epoch"]


@dataclass(frozen=True)
class Assigned:
    """What every shard gets of an epoch.

    Attributes
    ----------
    batches
        [shard][step] -> rows of the epoch's order.
    padded, left_out
        Rows repeated, and rows that no shard gets.
    """

    batches: list[list[list[int]]]
    padded: int
    left_out: int

    def stream(self, shard: int) -> list[int]:
        """A shard's rows, one after the other."""
        return [row for batch in self.batches[shard] for row in batch]


def deal_list(
    total: int, shards: int, batch_rows: int, equal: Equal, *, drop_last: bool = False, start: int = 0
) -> Assigned:
    """Deal rows [start, total) as law 3 says."""
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


def _share_rest(rest: list[int], n: int, equal: Equal) -> list[list[int]]:
    r = len(rest)
    if equal == "pad":
        share = -(-r // n)
        places = [rest[p] if p < r else rest[p % r] for p in range(share * n)]
        return [places[t * share : (t + 1) * share] for t in range(n)]
    sizes = [r // n + (equal is False and t < r % n) for t in range(n)]
    firsts = [sum(sizes[:t]) for t in range(n)]
    return [rest[first : first + size] for first, size in zip(firsts, sizes, strict=True)]


def order_epoch(
    blocks: BlockTable, values: Sequence[Sequence[Any]], *, cut: WindowCut, seed: int | None, epoch: int
) -> list[Any]:
    """The values of an epoch in their order; ``values`` are what each block delivers."""
    plan = plan_epoch(blocks, cut=cut, seed=seed, epoch=epoch)
    order: list[Any] = []
    for window in range(plan.windows):
        stored = [value for block in plan.window_blocks(window) for value in values[block]]
        rows = order_window(seed=seed, epoch=epoch, window=window, rows=len(stored), first_row=len(order))
        placed: list[Any] = [None] * len(stored)
        for value, row in zip(stored, rows.epoch_rows(0, len(stored)).tolist(), strict=True):
            placed[row - len(order)] = value
        order.extend(placed)
    return order
