"""The results of systems: summaries, the printed table, and breaches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.names import PEERS
from bench.system.console import align_table, write_cell
from bench.system.machine import count_cores, print_machine
from bench.system.ray_cluster import describe_spilled
from bench.throughput.options import BenchConfig, find_data
from bench.training.delivered_rows import Randomness, find_worst
from bench.training.facts import Facts, read_facts
from bench.training.results import TOLERANCE_BYTES, SystemResult

_SPEED = ("s/epoch", "first epoch s", "M rows/s", "MB/s", "of the scan", "wait %")
_HEADS = ("system", *_SPEED, "peak MiB", "estimated MiB", "exactly once", "order")
_NOTES = (
    "peak: above the idle processes; estimated: by explain() before the run; "
    f"a peak more than {TOLERANCE_BYTES // 2**20} MiB above the estimate is a breach",
    "order: mean distance in the files of rows delivered one after the other, relative to a "
    "full shuffle; windows of k of n blocks reach 1 - 1/k + 1/n",
)


@dataclass(frozen=True)
class Summary:
    """One line of the table; None for values that were not measured."""

    title: str
    seconds: float
    first_epoch_seconds: float
    rows_per_second: float
    megabytes_per_second: float
    of_scan: float | None
    wait_share: float | None
    peak_mib: float | None
    estimated_mib: float | None
    exactly_once: str
    order: Randomness | None


def summarize(result: SystemResult, facts: Facts, scan_seconds: float | None) -> Summary:
    """Take medians over the steady epochs, and worst cases of delivery and order."""
    seconds = result.median_seconds()
    steady = result.steady
    waits = [epoch.wait_share for epoch in steady if epoch.wait_share is not None]
    orders = [
        [epoch.randomness for epoch in some if epoch.randomness is not None]
        for some in (steady, result.epochs)
    ]
    return Summary(
        title=describe_title(result),
        seconds=seconds,
        first_epoch_seconds=result.epochs[0].seconds,
        rows_per_second=steady[0].rows / seconds,
        megabytes_per_second=facts.decoded_bytes / 1e6 / seconds,
        of_scan=scan_seconds / seconds if scan_seconds else None,
        wait_share=statistics.median(waits) if waits else None,
        peak_mib=result.peak_bytes / 2**20 if result.peak_bytes is not None else None,
        estimated_mib=result.estimate.total_bytes / 2**20 if result.estimate is not None else None,
        exactly_once=worst_verdict(result, facts),
        order=find_worst(orders[0] or orders[1]),
    )


def describe_title(result: SystemResult) -> str:
    title = PEERS[result.system].title + (f", cached ({result.cache})" if result.cache else "")
    return f"{title}, {result.trainers} trainers" if result.trainers > 1 else title


def worst_verdict(result: SystemResult, facts: Facts) -> str:
    """The worst exactly-once verdict over all epochs, including the first."""
    verdicts = [epoch.verdict for epoch in result.epochs if epoch.verdict is not None]
    for epoch in result.epochs:
        if epoch.verdict is not None and not epoch.verdict.good:
            return f"{epoch.verdict} (epoch {epoch.number})"
    if verdicts:
        return str(verdicts[0])
    counted = all(epoch.rows == facts.rows for epoch in result.epochs)
    return "rows counted" if counted else "NO: rows are missing"


def open_data(config: BenchConfig) -> Facts:
    """Find or make the files, read the facts about them, and print these and the machine."""
    return describe_files(config, find_data(config))


def describe_files(config: BenchConfig, paths: Sequence[str]) -> Facts:
    """Read the facts about some files, and print them and the machine."""
    facts = read_facts(paths, count_cores())
    print(
        f"{facts.rows:,} rows, {len(facts.schema)} columns, {facts.decoded_bytes / 1e6:,.0f} MB decoded, "
        f"{len(paths)} files, {facts.row_groups} row groups; batches of {config.batch_size:,}; "
        f"window: {config.window or 'the whole dataset'}"
    )
    print_machine()
    return facts


def draw_table(summaries: Sequence[Summary]) -> str:
    table = align_table(_HEADS, [_write_line(one) for one in summaries], {"system", "exactly once"})
    return "\n".join([table, *_NOTES])


def _write_line(one: Summary) -> tuple[str, ...]:
    return (
        one.title,
        f"{one.seconds:.2f}",
        f"{one.first_epoch_seconds:.2f}",
        f"{one.rows_per_second / 1e6:.2f}",
        f"{one.megabytes_per_second:,.0f}",
        write_cell(one.of_scan, "{:.2f}"),
        write_cell(None if one.wait_share is None else 100 * one.wait_share, "{:.1f}"),
        write_cell(one.peak_mib, "{:,.0f}"),
        write_cell(one.estimated_mib, "{:,.0f}"),
        one.exactly_once,
        write_cell(None if one.order is None else one.order.neighbour_distance, "{:.2f}"),
    )


def describe_breaches(results: Sequence[SystemResult], facts: Facts) -> list[str]:
    """One line per breach: failures, delivery not exactly once, memory above the estimate, spilling."""
    return [
        f"{describe_title(result)}: {breach}" for result in results for breach in _breaches(result, facts)
    ]


def _breaches(result: SystemResult, facts: Facts) -> list[str]:
    if result.error is not None:
        return [f"FAILED, {result.error}"]
    found = []
    rows = worst_verdict(result, facts)
    if rows.startswith("NO"):
        found.append(f"exactly once? {rows}")
    peak, estimate = result.peak_bytes, result.estimate
    if peak is not None and estimate is not None and peak > estimate.total_bytes + TOLERANCE_BYTES:
        found.append(
            f"PEAK of {peak / 2**20:,.0f} MiB is above the estimate of {estimate.total_bytes / 2**20:,.0f} MiB "
            f"by more than {TOLERANCE_BYTES // 2**20} MiB"
        )
    if PEERS[result.system].streams and result.store is not None and result.store.spilled_bytes:
        found.append(f"SPILLED {describe_spilled(result.store.spilled_bytes)} MiB, as Ray reports it")
    return found
