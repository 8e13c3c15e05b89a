"""Summary of one system's results: medians, and worst cases of delivery and order."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.facts import Facts
from bench.order import Randomness
from bench.peers import PEERS
from bench.results import EpochResult, SystemResult

__all__ = ["Summary", "describe_title", "summarize", "worst_verdict"]


@dataclass(frozen=True)
class Summary:
    """One line of the table; None for values that were not measured.

    ``of_scan`` is the throughput relative to the raw scan of the same run.
    """

    title: str
    seconds: float
    first_epoch_seconds: float
    rows_per_second: float
    megabytes_per_second: float
    of_scan: float | None
    first_batch_seconds: float
    wait_share: float | None
    peak_mib: float | None
    estimated_mib: float | None
    within_estimate: bool | None
    exactly_once: str
    neighbour_distance: float | None
    groups_a_batch: float | None
    groups_expected: float | None
    neighbours_kept: float | None
    slowed_share: float | None = None
    coreless_share: float | None = None


def summarize(result: SystemResult, facts: Facts, scan_seconds: float | None) -> Summary:
    """Take medians over the steady epochs, and worst cases of delivery and order."""
    seconds = result.median_seconds()
    steady = result.steady
    waits = [epoch.wait_share for epoch in steady if epoch.wait_share is not None]
    slowed = [epoch.slowed for epoch in steady if epoch.slowed is not None]
    coreless = [epoch.coreless for epoch in steady if epoch.coreless is not None]
    orders = _orders(steady) or _orders(result.epochs)
    return Summary(
        title=describe_title(result),
        seconds=seconds,
        first_epoch_seconds=result.epochs[0].seconds,
        rows_per_second=steady[0].rows / seconds,
        megabytes_per_second=facts.decoded_bytes / 1e6 / seconds,
        of_scan=scan_seconds / seconds if scan_seconds else None,
        first_batch_seconds=statistics.median(epoch.first_batch_seconds for epoch in steady),
        wait_share=statistics.median(waits) if waits else None,
        peak_mib=result.peak_bytes / 2**20 if result.peak_bytes is not None else None,
        estimated_mib=result.estimate.total_bytes / 2**20 if result.estimate is not None else None,
        within_estimate=not result.exceeds_estimate if result.estimate is not None else None,
        exactly_once=worst_verdict(result, facts),
        neighbour_distance=min((order.neighbour_distance for order in orders), default=None),
        groups_a_batch=min((order.groups_a_batch for order in orders), default=None),
        groups_expected=orders[0].groups_expected if orders else None,
        neighbours_kept=max((order.neighbours_kept for order in orders), default=None),
        slowed_share=statistics.median(slowed) if slowed else None,
        coreless_share=statistics.median(coreless) if coreless else None,
    )


def _orders(epochs: Sequence[EpochResult]) -> list[Randomness]:
    return [epoch.randomness for epoch in epochs if epoch.randomness is not None]


def describe_title(result: SystemResult) -> str:
    """The system's name, with its cache and the number of trainers if there are several."""
    title = PEERS[result.system].title + (f", cached ({result.cache})" if result.cache else "")
    return f"{title}, {result.trainers} trainers" if result.trainers > 1 else title


def worst_verdict(result: SystemResult, facts: Facts) -> str:
    """The worst exactly-once verdict over all epochs, including the first."""
    verdicts = [epoch.verdict for epoch in result.epochs if epoch.verdict is not None]
    bad = [
        f"{e.verdict} (epoch {e.number})"
        for e in result.epochs
        if e.verdict is not None and not e.verdict.good
    ]
    if bad:
        return bad[0]
    if verdicts:
        return str(verdicts[0])
    counted = all(epoch.rows == facts.rows for epoch in result.epochs)
    return "rows counted" if counted else "NO: rows are missing"
