"""Test oracle: the batches that every shard must receive, computed with lists and without windrow's assignment."""

from __future__ import annotations

import numpy as np

from bench.simulate.scenario import Dataset, Split
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job
from windrow.pipeline.quality.epoch_order import EpochOrder
from windrow.shuffle.order.epoch_plan import plan_epoch


class ReferenceOrder:
    def __init__(self, job: Job, dataset: Dataset) -> None:
        self._job, self._dataset = job, dataset
        self._epochs: dict[int, tuple[list[int], EpochOrder]] = {}

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
        firsts = self._epoch(epoch)[1].window_starts[:-1].tolist()
        window = max(w for w, first in enumerate(firsts) if first < row + self._job.rows_known)
        return Cursor(epoch, row, window, firsts[window])

    def corrupt(self, start: Cursor, epoch: int, window: int) -> tuple[int, ...]:
        """The corrupt blocks that a stream started at ``start`` has found by the end of a window."""
        first, now = (self._epoch(number)[1].window_of_block for number in (start.epoch, epoch))
        return tuple(
            block
            for block in sorted(self._dataset.corrupt)
            if block in start.corrupt
            or (epoch == start.epoch and start.window <= now[block] <= window)
            or (epoch > start.epoch and (first[block] >= start.window or now[block] <= window))
            or epoch > start.epoch + 1
        )

    def _epoch(self, epoch: int) -> tuple[list[int], EpochOrder]:
        """The rows of an epoch in their order, and the windows that they are in."""
        if epoch not in self._epochs:
            job, dataset = self._job, self._dataset
            plan = plan_epoch(dataset.blocks, cut=job.cut, seed=job.seed, epoch=epoch)
            order = EpochOrder(plan, np.array(dataset.delivered, np.int64), job.seed)
            self._epochs[epoch] = order.stored_rows(np.arange(dataset.firsts[-1])).tolist(), order
        return self._epochs[epoch]


def _share(rest: list[int], split: Split) -> list[list[int]]:
    n, r = split.shards, len(rest)
    if split.equal == "pad":
        rest = [rest[p % r] for p in range(-(-r // n) * n)]
    elif split.equal:
        rest = rest[: r // n * n]
    return [share.tolist() for share in np.array_split(rest, n)]
