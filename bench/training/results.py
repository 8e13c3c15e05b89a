"""Results of one system: the measurements of its trainers, merged for each epoch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bench.system.ray_cluster import ObjectStoreUse
from bench.training.delivered_rows import (
    Randomness,
    Verdict,
    check_count,
    check_keys,
    find_rows,
    measure_randomness,
    read_fingerprints,
)
from bench.training.request import Request
from bench.training.trainer import EpochTimes, TrainerResult

if TYPE_CHECKING:
    from windrow.pipeline.plan.window_budget import Budget

# Accepted excess of the peak over the estimate, idle memory excluded. The estimate covers rows. In addition, the
# allocators of Arrow, NumPy and Ray retain freed pages for a while, modules are imported after the idle memory was
# measured, and stacks and small objects of the interpreters grow. None of this depends on the size of the data.
TOLERANCE_BYTES = 64 * 2**20


@dataclass
class EpochResult:
    """One epoch over all trainers, from the end of the previous one until the last trainer's last batch.

    One that does not count took longer because the content of its rows was read.
    """

    number: int
    start: float
    end: float
    wait_share: float | None
    rows: int
    batches: int
    losses: tuple[float, float] | None
    verdict: Verdict | None = None
    randomness: Randomness | None = None
    paced: bool = False
    counts: bool = True

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass
class SystemResult:
    system: str
    trainers: int
    epochs: list[EpochResult] = field(default_factory=list)
    error: str | None = None
    peak_bytes: int | None = None
    # by explain(), before the run
    estimate: Budget | None = None
    store: ObjectStoreUse | None = None
    cache: str | None = None

    @property
    def steady(self) -> list[EpochResult]:
        """The epochs that count: the paced ones, or else those after the first, or the only one."""
        paced = [epoch for epoch in self.epochs if epoch.paced]
        later = [epoch for epoch in self.epochs if epoch.number > 0]
        return paced or [epoch for epoch in later if epoch.counts] or later or self.epochs

    def median_seconds(self) -> float:
        return statistics.median(epoch.seconds for epoch in self.steady)


def merge_trainers(request: Request, trainers: Sequence[TrainerResult], delivers: bool) -> list[EpochResult]:
    """Merge the trainers' epochs and check the delivered rows."""
    counts = {len(trainer.epochs) for trainer in trainers}
    if len(counts) != 1:
        raise ValueError(f"the trainers had different numbers of epochs: {sorted(counts)}")
    if delivers and request.content is not None:
        trainers = _number_rows(trainers, read_fingerprints(request.paths, request.content))
    epochs: list[EpochResult] = []
    for number in range(counts.pop()):
        times = [trainer.epochs[number] for trainer in trainers]
        start = epochs[-1].end if epochs else min(one.start for one in times)
        epochs.append(_merge_epoch(number, start, times, counts_paced=number >= request.counts_from))
        if delivers:
            _check_epoch(epochs[-1], request, trainers)
    return epochs


def _number_rows(trainers: Sequence[TrainerResult], stored: NDArray[np.uint64]) -> Sequence[TrainerResult]:
    epochs = zip(*(trainer.arrived for trainer in trainers), strict=True)
    numbered = zip(*(find_rows(fingerprints, stored) for fingerprints in epochs), strict=True)
    return [replace(trainer, arrived=rows) for trainer, rows in zip(trainers, numbered, strict=True)]


def _merge_epoch(
    number: int, start: float, times: Sequence[EpochTimes], *, counts_paced: bool
) -> EpochResult:
    lasted = sum(one.end - one.start for one in times)
    waited = sum(one.wait_seconds for one in times)
    return EpochResult(
        number=number,
        start=start,
        end=max(one.end for one in times),
        wait_share=waited / lasted if waited else None,
        rows=sum(one.rows for one in times),
        batches=sum(one.batches for one in times),
        losses=_merge_losses(times),
        paced=counts_paced and all(one.step_seconds for one in times),
    )


def _merge_losses(times: Sequence[EpochTimes]) -> tuple[float, float] | None:
    """Mean loss over the first and the last tenth of the epoch's batches."""
    tails = [(one.losses, max(1, len(one.losses) // 10)) for one in times if one.losses]
    if not tails:
        return None
    first = statistics.fmean(statistics.fmean(losses[:count]) for losses, count in tails)
    return first, statistics.fmean(statistics.fmean(losses[-count:]) for losses, count in tails)


def _check_epoch(epoch: EpochResult, request: Request, trainers: Sequence[TrainerResult]) -> None:
    allowed = request.trainers - 1 if request.equal else 0
    if not request.identifies(epoch.number):
        epoch.verdict = check_count(epoch.rows, request.rows, allowed)
        return
    arrived = [trainer.arrived[epoch.number] for trainer in trainers]
    epoch.counts = request.content is None
    method = "key" if request.content is None else "content"
    epoch.verdict = check_keys(arrived, request.rows, allowed, method)
    epoch.randomness = measure_randomness(
        arrived, request.rows, batch_size=request.batch_size, row_groups=request.row_groups
    )
