"""``python -m bench memory``: stream data that is larger than memory, on Ray and on threads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from bench.system.console import ProgressLine, align_table, write_cell
from bench.system.machine import count_cores, describe_machine
from bench.system.ray_cluster import describe_spilled
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, find_data
from bench.throughput.report import (
    describe_breaches,
    describe_run,
    describe_title,
    print_head,
    summarize,
    worst_verdict,
    write_json,
)
from bench.training.facts import Facts, read_facts
from bench.training.results import SystemResult

__all__ = ["measure_memory"]

_HEADS = (
    "system",
    "limit MiB",
    "data / limit",
    "windows held",
    "store peak MiB",
    "spilled MiB",
    "peak MiB",
    "estimated MiB",
    "s/epoch",
    "exactly once",
)
_NOTE = (
    "limit: of the object store on Ray, of all memory on threads; store peak: peak of pinned bytes; "
    "peak: above the idle processes"
)


def measure_memory(config: BenchConfig) -> int:
    """Stream within the limits and print the table; the exit status is 0 without breaches."""
    line = ProgressLine(sys.stderr)
    paths = find_data(config, line)
    facts = read_facts(paths, config.columns, config.key, count_cores())
    machine = describe_machine()
    print_head(config, facts, machine, len(paths))
    results = [
        *run_rounds(replace(config, systems=("windrow-ray",), memory_limit=None), paths, facts, line),
        *run_rounds(replace(config, systems=("windrow-threads",)), paths, facts, line),
    ]
    worked = [result for result in results if result.error is None]
    breaches = describe_breaches(results, facts)
    print("", _draw_table(worked, facts), *breaches, sep="\n")
    if config.json is not None:
        summaries = [summarize(result, facts, None) for result in worked]
        write_json(config.json, describe_run(config, results, summaries, facts, machine, breaches))
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
        worst_verdict(result, facts),
    )


def _write_mib(size_bytes: int | None) -> str:
    return write_cell(None if size_bytes is None else size_bytes / 2**20, "{:,.0f}")
