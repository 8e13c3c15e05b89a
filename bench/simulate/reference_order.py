"""Test oracle: the batches that every shard must receive, computed with lists and without windrow's assignment."""

from __future__ import annotations

from bench.simulate.scenario import Dataset, Split
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.epoch_plan import plan_epoch
from windrow.shuffle.order.window_order import order_window


class ReferenceOrder:
    def __init__(self, job: Job, dataset: Dataset) -> None:
        self._job, self._dataset = job, dataset
        self._orders: dict[int, tuple[list[int], list[int]]] = {}
        self._windows: dict[int, dict[int, int]] = {}

    def order(self, epoch: int) -> list[int]:
        return self._epoch(epoch)[0]

    def batches(self, epoch: int, split: Split, start_row: int) -> list[list[list[int]]]:
        """[shard][step] -> row numbers of the batch, assigned from ``start_row`` of the epoch onwards."""
        order, n, B = self.order(epoch)[start_row:], split.shards, split.batch_rows
        full = len(order) // (n * B)
        assigned = [[order[(s * n + t) * B : (s * n + t + 1) * B] for s in range(full)] for t in range(n)]
        rest = [] if split.drop_last else order[full * n * B :]
        for t, share in enumerate(_share(rest, split)):
            if share:
                assigned[t].append(share)
        return assigned

    def cursor(self, epoch: int, row: int) -> Cursor:
        """The cursor of a row.

        Its window is the one that contains the row, or the one before it where rows are counted as they are read.
        """
        if row == 0:
            return Cursor(epoch)
        firsts = self._epoch(epoch)[1]
        window = max(w for w, first in enumerate(firsts) if first < row + self._job.rows_known)
        return Cursor(epoch, row, window, firsts[window])

    def corrupt(self, start: Cursor, epoch: int, window: int) -> tuple[int, ...]:
        """The corrupt blocks that a stream started at ``start`` has found by the end of a window."""
        self._epoch(epoch)
        first, now = self._windows[start.epoch], self._windows[epoch]
        return tuple(
            block
            for block in sorted(self._dataset.corrupt)
            if block in start.corrupt
            or (epoch == start.epoch and start.window <= now[block] <= window)
            or (epoch > start.epoch and (first[block] >= start.window or now[block] <= window))
            or epoch > start.epoch + 1
        )

    def _epoch(self, epoch: int) -> tuple[list[int], list[int]]:
        if epoch not in self._orders:
            order: list[int] = []
            firsts: list[int] = []
            job, dataset = self._job, self._dataset
            plan = plan_epoch(dataset.blocks, cut=job.cut, seed=job.seed, epoch=epoch)
            windows = self._windows[epoch] = {}
            for window in range(plan.windows):
                firsts.append(len(order))
                windows.update(dict.fromkeys(plan.window_blocks(window).tolist(), window))
                stored = [
                    row
                    for block in plan.window_blocks(window).tolist()
                    for row in range(dataset.firsts[block], dataset.firsts[block + 1])
                ]
                places = order_window(
                    seed=job.seed, epoch=epoch, window=window, rows=len(stored), first_row=0
                ).epoch_rows(0, len(stored))
                placed = dict(zip(places.tolist(), stored, strict=True))
                order.extend(placed[place] for place in range(len(stored)))
            self._orders[epoch] = order, firsts
        return self._orders[epoch]


def _share(rest: list[int], split: Split) -> list[list[int]]:
    n, r = split.shards, len(rest)
    if split.equal == "pad":
        each = -(-r // n)
        padded = [rest[p % r] for p in range(each * n)]
        return [padded[t * each : (t + 1) * each] for t in range(n)]
    sizes = [r // n + (split.equal is False and t < r % n) for t in range(n)]
    starts = [sum(sizes[:t]) for t in range(n)]
    return [rest[start : start + size] for start, size in zip(starts, sizes, strict=True)]
