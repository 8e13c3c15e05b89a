"""The printed table and the JSON report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.config import BenchConfig
from bench.estimate import TOLERANCE_BYTES
from bench.facts import Facts
from bench.object_store import describe_spilled
from bench.peers import PEERS
from bench.results import SystemResult
from bench.summary import Summary, describe_title, worst_verdict
from bench.table import align_table, write_cell

__all__ = ["describe_breaches", "describe_run", "draw_table", "print_head", "write_json"]

_HEADS = (
    "system",
    "s/epoch",
    "first epoch s",
    "M rows/s",
    "MB/s",
    "of the scan",
    "first batch s",
    "wait %",
    "slowed %",
    "no core %",
    "peak MiB",
    "estimated MiB",
    "exactly once",
    "order",
)
_NOTES = (
    "peak: above the idle processes; estimated: by explain() before the run; "
    f"a peak more than {TOLERANCE_BYTES // 2**20} MiB above the estimate is a breach",
    "slowed: slowdown of the trainers' computation relative to an idle engine (--computing); no core: the part of it "
    "in which they waited for a core, as the kernel counts it",
    "order: mean distance in the files of rows delivered one after the other, relative to a "
    "full shuffle; windows of k of n blocks reach 1 - 1/k + 1/n",
)


def print_head(config: BenchConfig, facts: Facts, machine: dict[str, Any], files: int) -> None:
    """Print the data and the machine that are measured."""
    print(
        f"{facts.rows:,} rows, {len(facts.schema)} columns, {facts.decoded_bytes / 1e6:,.0f} MB decoded, "
        f"{files} files, {facts.row_groups} row groups; batches of {config.batch_size:,}; "
        f"window: {config.window or 'the whole dataset'}"
    )
    print(
        f"{machine['cores']} cores, {machine['processor']}, load {machine['load_1min']:.1f} at the start",
        flush=True,
    )


def draw_table(summaries: Sequence[Summary]) -> str:
    """The table, followed by the meaning of its columns."""
    if not summaries:
        return "no system could be measured"
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
        f"{one.first_batch_seconds:.2f}",
        write_cell(None if one.wait_share is None else one.wait_share * 100, "{:.1f}"),
        write_cell(None if one.slowed_share is None else one.slowed_share * 100, "{:.1f}"),
        write_cell(None if one.coreless_share is None else one.coreless_share * 100, "{:.1f}"),
        write_cell(one.peak_mib, "{:,.0f}"),
        write_cell(one.estimated_mib, "{:,.0f}"),
        one.exactly_once,
        write_cell(one.neighbour_distance, "{:.2f}"),
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
    if result.exceeds_estimate and result.peak_bytes is not None:
        found.append(
            f"PEAK of {result.peak_bytes / 2**20:,.0f} MiB is above the estimate of {result.estimate} "
            f"by more than {TOLERANCE_BYTES // 2**20} MiB"
        )
    if PEERS[result.system].streams and result.store is not None and result.store.spilled_bytes:
        found.append(f"SPILLED {describe_spilled(result.store.spilled_bytes)} MiB, as Ray reports it")
    return found


def write_json(path: Path, fields: dict[str, Any]) -> None:
    """Write the result of ``describe_run``, or a report that contains several."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields, indent=1))
    print(f"written: {path}")


def describe_run(
    config: BenchConfig,
    results: Sequence[SystemResult],
    summaries: Sequence[Summary],
    facts: Facts,
    machine: dict[str, Any],
    breaches: Sequence[str],
) -> dict[str, Any]:
    """All results, with the configuration and the machine."""
    return {
        "machine": machine,
        "options": {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(config).items()
        },
        "data": {
            "rows": facts.rows,
            "decoded_bytes": facts.decoded_bytes,
            "row_groups": facts.row_groups,
            "columns": {field.name: str(field.type) for field in facts.schema},
        },
        "tolerance_bytes": TOLERANCE_BYTES,
        "breaches": list(breaches),
        "summaries": [vars(one) for one in summaries],
        "systems": [result.to_dict() for result in results],
    }
