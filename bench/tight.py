"""``python -m bench memory``: much data through little memory, on Ray and on threads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from bench.asked import Asked, find_data
from bench.facts import Facts, read_facts
from bench.figures import describe_title, judge_rows, sum_up
from bench.machine import count_cores, describe_machine
from bench.progress import ProgressLine
from bench.report import describe_breaches, describe_run, print_head, write_json
from bench.results import SystemResult
from bench.rounds import run_rounds
from bench.store import describe_spilled
from bench.table import align_table, write_cell

__all__ = ["measure_memory"]

_HEADS = (
    "system",
    "limit MiB",
    "data / limit",
    "windows held",
    "store peak MiB",
    "spilled MiB",
    "peak MiB",
    "promised MiB",
    "s/epoch",
    "exactly once",
)
_NOTE = (
    "limit: of the object store on Ray, of everything on threads; store peak: the most that was pinned; "
    "peak: above the idle processes"
)


def measure_memory(asked: Asked) -> int:
    """Stream through the limits, print the table; 0 when they and the promises were kept."""
    line = ProgressLine(sys.stderr)
    paths = find_data(asked, line)
    facts = read_facts(paths, asked.columns, asked.key, count_cores())
    machine = describe_machine()
    print_head(asked, facts, machine, len(paths))
    results = [
        *run_rounds(replace(asked, systems=("windrow-ray",), memory_limit=None), paths, facts, line),
        *run_rounds(replace(asked, systems=("windrow-threads",)), paths, facts, line),
    ]
    worked = [result for result in results if result.error is None]
    breaches = describe_breaches(results, facts)
    print("", _draw_table(worked, facts), *breaches, sep="\n")
    if asked.json is not None:
        figures = [sum_up(result, facts, None) for result in worked]
        write_json(asked.json, describe_run(asked, results, figures, facts, machine, breaches))
    return 1 if breaches else 0


def _draw_table(results: Sequence[SystemResult], facts: Facts) -> str:
    rows = [_write_line(result, facts) for result in results]
    return "\n".join([align_table(_HEADS, rows, {"system", "exactly once"}), _NOTE])


def _write_line(result: SystemResult, facts: Facts) -> tuple[str, ...]:
    store, estimate = result.store, result.estimate
    limit = store.size_bytes if store is not None else estimate.limit_bytes if estimate is not None else None
    return (
        describe_title(result),
        _write_mib(limit),
        write_cell(facts.decoded_bytes / limit if limit else None, "{:.1f}"),
        write_cell(estimate.windows if estimate is not None else None, "{}"),
        _write_mib(store.peak_bytes if store is not None else None),
        describe_spilled(store.spilled_bytes) if store is not None else "-",
        _write_mib(result.peak_bytes),
        _write_mib(estimate.total_bytes if estimate is not None else None),
        f"{result.median_seconds():.2f}",
        judge_rows(result, facts),
    )


def _write_mib(size_bytes: int | None) -> str:
    return write_cell(None if size_bytes is None else size_bytes / 2**20, "{:,.0f}")
