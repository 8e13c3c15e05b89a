"""``python -m bench throughput`` and ``demo``: measure systems one after another and print a table."""

from __future__ import annotations

import argparse
import sys

from bench.commands.launched import measure_launched
from bench.system.console import ProgressLine
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, default_config, read_ranks, read_throughput
from bench.throughput.report import describe_breaches, draw_table, open_data, summarize


def run_throughput(options: argparse.Namespace) -> int:
    """Measure what the options say."""
    config = read_throughput(options)
    return measure_launched(config, read_ranks(options)) if options.launcher else _measure(config)


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Options of ``demo``."""
    parser.add_argument("--small", action="store_true", help="a tenth of the data, for CI")


def run_demo(options: argparse.Namespace) -> int:
    """Two Ray trainers that train a small model, and two ranks of torchrun."""
    size, batch_size = ("30MB", 4096) if options.small else ("300MB", 16_384)
    peers = "scan,windrow-torchrun,windrow-ray-training"
    return _measure(
        default_config(
            *("--size", size, "--executor", "ray", "--peers", peers),
            epochs=3,
            trainers=2,
            batch_size=batch_size,
            equal=True,
        )
    )


def _measure(config: BenchConfig) -> int:
    """Run all systems and print the table; the exit status is 0 without breaches."""
    line = ProgressLine(sys.stderr)
    paths, facts = open_data(config, line)
    results = run_rounds(config, paths, facts, line)
    worked = [result for result in results if result.error is None]
    scan = next((result.median_seconds() for result in worked if result.system == "scan"), None)
    breaches = describe_breaches(results, facts)
    print("", draw_table([summarize(result, facts, scan) for result in worked]), *breaches, sep="\n")
    return int(bool(breaches))
