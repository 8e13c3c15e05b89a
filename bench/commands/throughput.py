"""``python -m bench throughput``: throughput, waiting, memory and exactly-once delivery of several systems."""

from __future__ import annotations

import argparse

from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, add_throughput, read_throughput
from bench.throughput.report import describe_breaches, draw_table, open_data, summarize


def add_options(parser: argparse.ArgumentParser) -> None:
    add_throughput(parser)


def run(options: argparse.Namespace) -> int:
    return measure(read_throughput(options))


def measure(config: BenchConfig) -> int:
    """Run all systems and print the table; the exit status is 0 without breaches."""
    facts = open_data(config)
    results = run_rounds(config, facts)
    worked = [result for result in results if result.error is None]
    scan = next((result.median_seconds() for result in worked if result.system == "scan"), None)
    breaches = describe_breaches(results, facts)
    print("", draw_table([summarize(result, facts, scan) for result in worked]), *breaches, sep="\n")
    return int(bool(breaches))
