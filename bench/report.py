"""What is printed and written at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.asked import Asked
from bench.estimate import TOLERANCE_BYTES
from bench.facts import Facts
from bench.figures import Figures, describe_title, judge_rows
from bench.peers import PEERS
from bench.results import SystemResult
from bench.store import describe_spilled
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
    "promised MiB",
    "exactly once",
    "order",
)
_NOTES = (
    "peak: above the idle processes; promised: what explain() told before the run; "
    f"above it by {TOLERANCE_BYTES // 2**20} MiB is a breach",
    "slowed: how much longer trainers computed than with an idle engine (--computing); no core: what of that they "
    "waited for one, as the kernel counts it",
    "order: how far apart in the files two rows are that arrive one after the other, over that of a "
    "full shuffle; windows of k of n blocks reach 1 - 1/k + 1/n",
)


def print_head(asked: Asked, facts: Facts, machine: dict[str, Any], files: int) -> None:
    """Say what is measured, and on what."""
    print(
        f"{facts.rows:,} rows, {len(facts.schema)} columns, {facts.decoded_bytes / 1e6:,.0f} MB decoded, "
        f"{files} files, {facts.row_groups} row groups; batches of {asked.batch_size:,}; "
        f"window: {asked.window or 'the whole dataset'}"
    )
    print(
        f"{machine['cores']} cores, {machine['processor']}, load {machine['load_1min']:.1f} at the start",
        flush=True,
    )


def draw_table(figures: Sequence[Figures]) -> str:
    """The table, with what its columns mean below it."""
    if not figures:
        return "no system could be measured"
    table = align_table(_HEADS, [_write_line(one) for one in figures], {"system", "exactly once"})
    return "\n".join([table, *_NOTES])


def _write_line(one: Figures) -> tuple[str, ...]:
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
        write_cell(one.promised_mib, "{:,.0f}"),
        one.exactly_once,
        write_cell(one.neighbour_distance, "{:.2f}"),
    )


def describe_breaches(results: Sequence[SystemResult], facts: Facts) -> list[str]:
    """A line for everything that must not be: failures, rows not delivered once, memory, spilling."""
    return [
        f"{describe_title(result)}: {breach}" for result in results for breach in _breaches(result, facts)
    ]


def _breaches(result: SystemResult, facts: Facts) -> list[str]:
    if result.error is not None:
        return [f"FAILED, {result.error}"]
    found = []
    rows = judge_rows(result, facts)
    if rows.startswith("NO"):
        found.append(f"exactly once? {rows}")
    if result.broken_promise and result.peak_bytes is not None:
        found.append(
            f"PEAK of {result.peak_bytes / 2**20:,.0f} MiB is above the promise of {result.estimate} "
            f"by more than {TOLERANCE_BYTES // 2**20} MiB"
        )
    if PEERS[result.system].streams and result.store is not None and result.store.spilled_bytes:
        found.append(f"SPILLED {describe_spilled(result.store.spilled_bytes)} MiB, as Ray reports it")
    return found


def write_json(path: Path, fields: dict[str, Any]) -> None:
    """Write what ``describe_run`` tells, or several of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields, indent=1))
    print(f"written: {path}")


def describe_run(
    asked: Asked,
    results: Sequence[SystemResult],
    figures: Sequence[Figures],
    facts: Facts,
    machine: dict[str, Any],
    breaches: Sequence[str],
) -> dict[str, Any]:
    """Everything measured, with what was asked and what it was measured on."""
    return {
        "machine": machine,
        "options": {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(asked).items()
        },
        "data": {
            "rows": facts.rows,
            "decoded_bytes": facts.decoded_bytes,
            "row_groups": facts.row_groups,
            "columns": {field.name: str(field.type) for field in facts.schema},
        },
        "tolerance_bytes": TOLERANCE_BYTES,
        "breaches": list(breaches),
        "figures": [vars(one) for one in figures],
        "systems": [result.to_dict() for result in results],
    }
