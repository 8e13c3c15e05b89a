"""``python -m bench throughput``: measure systems one after another and print a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from bench.system.console import ProgressLine
from bench.system.machine import count_cores, describe_machine
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, find_data
from bench.throughput.report import (
    Summary,
    describe_breaches,
    describe_run,
    draw_table,
    print_head,
    summarize,
    write_json,
)
from bench.training.facts import Facts, read_facts
from bench.training.results import SystemResult

__all__ = ["measure"]


def measure(config: BenchConfig) -> int:
    """Run all systems, print the table, write the output files; the exit status is 0 without breaches."""
    line = ProgressLine(sys.stderr)
    paths = find_data(config, line)
    facts = read_facts(paths, config.columns, config.key, count_cores())
    machine = describe_machine()
    print_head(config, facts, machine, len(paths))
    results = run_rounds(config, paths, facts, line)
    summaries = _summarize_all((result for result in results if result.error is None), facts)
    breaches = describe_breaches(results, facts)
    print("", draw_table(summaries), *breaches, sep="\n")
    if config.json is not None:
        write_json(config.json, describe_run(config, results, summaries, facts, machine, breaches))
    if config.plot is not None:
        from bench.throughput.plot import draw_plot

        draw_plot(results, summaries, config.plot)
        print(f"written: {config.plot}")
    return 1 if breaches else 0


def _summarize_all(results: Iterable[SystemResult], facts: Facts) -> list[Summary]:
    listed = list(results)
    scan = next((result.median_seconds() for result in listed if result.system == "scan"), None)
    return [summarize(result, facts, scan) for result in listed]
