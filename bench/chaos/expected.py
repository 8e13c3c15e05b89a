"""Test oracle: the rows of each step of each shard, from the plan, without executors or shard assignment code."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.chaos.setting import Setting, make_pipeline
from windrow.shuffle.order.epoch_plan import plan_epoch
from windrow.shuffle.order.window_order import order_window

__all__ = ["Expected", "digest_keys"]


def digest_keys(keys: NDArray[np.int64]) -> str:
    """A short digest of the keys of a batch, in their order."""
    return hashlib.blake2b(np.ascontiguousarray(keys, "<i8").tobytes(), digest_size=8).hexdigest()


class Expected:
    """The undisturbed stream of a setting."""

    def __init__(self, setting: Setting, path: Path) -> None:
        self._setting = setting
        self._job = make_pipeline(setting, path)._job()
        self._order = lru_cache(4)(self._make_order)

    def rows(self) -> int:
        """Rows of an epoch."""
        return sum(len(self._setting.keys_of(group)) for group in range(self._setting.groups))

    def steps(self, shard: int) -> int:
        """Batches of a shard in an epoch."""
        full, rest = divmod(self.rows(), self._setting.trainers * self._setting.batch_rows)
        return full + (rest // self._setting.trainers + (shard < rest % self._setting.trainers) > 0)

    def keys(self, epoch: int, step: int, shard: int) -> NDArray[np.int64]:
        """The keys of one batch."""
        n, B = self._setting.trainers, self._setting.batch_rows
        order = self._order(epoch)
        full = len(order) // (n * B)
        if step < full:
            return order[(step * n + shard) * B : (step * n + shard + 1) * B]
        rest = order[full * n * B :]
        share, more = divmod(len(rest), n)
        first = shard * share + min(shard, more)
        return rest[first : first + share + (shard < more)]

    def digest(self, epoch: int, step: int, shard: int) -> str:
        """The digest of one batch's keys."""
        return digest_keys(self.keys(epoch, step, shard))

    def _make_order(self, epoch: int) -> NDArray[np.int64]:
        job = self._job
        plan = plan_epoch(job.source.blocks, cut=job.cut, seed=job.seed, epoch=epoch)
        windows = []
        for window in range(plan.windows):
            stored = np.concatenate([self._setting.keys_of(int(b)) for b in plan.window_blocks(window)])
            order = order_window(seed=job.seed, epoch=epoch, window=window, rows=len(stored), first_row=0)
            placed = np.empty_like(stored)
            placed[order.epoch_rows(0, len(stored))] = stored
            windows.append(placed)
        return np.concatenate(windows)
