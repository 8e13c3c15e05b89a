"""``python -m bench throughput``: the systems one after the other, then the table."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from bench.asked import Asked, find_data
from bench.facts import Facts, read_facts
from bench.figures import Figures, sum_up
from bench.machine import count_cores, describe_machine
from bench.progress import ProgressLine
from bench.report import describe_breaches, describe_run, draw_table, print_head, write_json
from bench.results import SystemResult
from bench.rounds import run_rounds

__all__ = ["measure"]


def measure(asked: Asked) -> int:
    """Run everything, print the table, write what was asked for; 0 when all is well."""
    line = ProgressLine(sys.stderr)
    paths = find_data(asked, line)
    facts = read_facts(paths, asked.columns, asked.key, count_cores())
    machine = describe_machine()
    print_head(asked, facts, machine, len(paths))
    results = run_rounds(asked, paths, facts, line)
    figures = _sum_up_all((result for result in results if result.error is None), facts)
    breaches = describe_breaches(results, facts)
    print("", draw_table(figures), *breaches, sep="\n")
    if asked.json is not None:
        write_json(asked.json, describe_run(asked, results, figures, facts, machine, breaches))
    if asked.plot is not None:
        from bench.plot import draw_plot

        draw_plot(results, figures, asked.plot)
        print(f"written: {asked.plot}")
    return 1 if breaches else 0


def _sum_up_all(results: Iterable[SystemResult], facts: Facts) -> list[Figures]:
    listed = list(results)
    scan = next((result.median_seconds() for result in listed if result.system == "scan"), None)
    return [sum_up(result, facts, scan) for result in listed]
