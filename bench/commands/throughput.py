"""``python -m bench throughput``: throughput, waiting, memory and exactly-once delivery of several systems."""

from __future__ import annotations

import argparse

from bench.commands.launched import measure_launched
from bench.system.console import ProgressLine, read_counts
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, add_throughput, read_throughput
from bench.throughput.report import describe_breaches, draw_table, open_data, summarize


def add_options(parser: argparse.ArgumentParser) -> None:
    add_throughput(parser)
    group = parser.add_argument_group("launcher")
    group.add_argument(
        "--launcher",
        choices=("torchrun",),
        help="instead, compare ranks that a launcher starts with as many Ray trainer actors",
    )
    group.add_argument(
        "--ranks", type=read_counts, default="1,2,4", metavar="N,M", help="numbers of ranks with --launcher"
    )


def run(options: argparse.Namespace) -> int:
    config = read_throughput(options)
    return measure_launched(config, options.ranks) if options.launcher else measure(config)


def measure(config: BenchConfig) -> int:
    """Run all systems and print the table; the exit status is 0 without breaches."""
    line = ProgressLine()
    facts = open_data(config, line)
    results = run_rounds(config, facts, line)
    worked = [result for result in results if result.error is None]
    scan = next((result.median_seconds() for result in worked if result.system == "scan"), None)
    breaches = describe_breaches(results, facts)
    print("", draw_table([summarize(result, facts, scan) for result in worked]), *breaches, sep="\n")
    return int(bool(breaches))
