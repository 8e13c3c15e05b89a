"""Randomness of the order of an epoch, measured with a key that numbers the stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.quality.measures import expect_distinct

__all__ = ["Randomness", "measure_randomness"]


@dataclass(frozen=True)
class Randomness:
    """Measures of an order; a uniform order has about 1, 0, 0, the expected row groups, and 0.

    Attributes
    ----------
    neighbour_distance
        Mean distance in storage of rows delivered next to each other, relative to
        uniform orders.
    correlation
        Correlation between a row's place in the epoch and in storage.
    same_as_before
        Share of the rows that had the same place in the previous epoch.
    groups_a_batch
        Mean number of row groups that the rows of a batch come from.
    groups_expected
        The same in a uniform order.
    neighbours_kept
        Share of the rows that are delivered next to one of their neighbours in storage.
    """

    neighbour_distance: float
    correlation: float
    same_as_before: float
    groups_a_batch: float
    groups_expected: float
    neighbours_kept: float


def measure_randomness(
    keys: Sequence[NDArray[np.generic]],
    previous: Sequence[NDArray[np.generic]] | None,
    rows: int,
    *,
    batch_size: int,
    row_groups: int,
) -> Randomness:
    """Measure the order of one epoch: the mean over the trainers, weighted by their rows.

    Row groups are assumed to have equal sizes.
    """
    sizes = np.diff(np.arange(row_groups + 1) * rows // row_groups)
    expected = expect_distinct(sizes, min(batch_size, rows))
    parts = [np.asarray(part, dtype=np.int64) for part in keys if len(part) > 2]
    if not parts:
        return Randomness(0.0, 0.0, 0.0, 0.0, expected, 0.0)
    weights = [len(part) for part in parts]
    steps = [np.abs(np.diff(part)) for part in parts]

    def average(measured: Sequence[float]) -> float:
        return float(np.average(measured, weights=weights))

    return Randomness(
        average([float(step.mean()) / (rows / 3) for step in steps]),
        average([abs(_correlate(part)) for part in parts]),
        _share_same(keys, previous),
        average([_count_groups(part * row_groups // rows, row_groups, batch_size) for part in parts]),
        expected,
        average([float((step == 1).mean()) for step in steps]),
    )


def _count_groups(groups: NDArray[np.int64], row_groups: int, batch_size: int) -> float:
    """Mean number of distinct row groups per full batch, or over all rows if no batch is full."""
    size = min(batch_size, len(groups))
    batches = groups[: len(groups) // size * size].reshape(-1, size)
    seen = np.zeros((len(batches), row_groups), dtype=bool)
    seen[np.arange(len(batches))[:, None], batches.clip(0, row_groups - 1)] = True
    return float(seen.sum(axis=1).mean())


def _correlate(keys: NDArray[np.int64]) -> float:
    centred = keys - keys.mean()
    places = np.arange(len(keys)) - (len(keys) - 1) / 2
    scale = float(np.sqrt((centred**2).sum() * (places**2).sum()))
    return float((centred * places).sum()) / scale if scale else 0.0


def _share_same(keys: Sequence[NDArray[np.generic]], previous: Sequence[NDArray[np.generic]] | None) -> float:
    if previous is None:
        return 0.0
    same = sum(int((a[: len(b)] == b[: len(a)]).sum()) for a, b in zip(keys, previous, strict=True))
    return same / max(1, sum(len(part) for part in keys))
