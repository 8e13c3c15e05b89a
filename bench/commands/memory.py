"""``python -m bench memory``: stream data that is larger than memory, on Ray and on threads."""

from __future__ import annotations

import argparse
from dataclasses import replace

from bench.system.console import add_data, print_table, read_count, read_size, write_cell
from bench.system.ray_cluster import describe_spilled
from bench.throughput.launch import run_rounds
from bench.throughput.options import read_config
from bench.throughput.report import describe_breaches, describe_title, open_data, worst_verdict
from bench.training.facts import Facts
from bench.training.results import SystemResult

_HEADS = ("system", "limit MiB", "spilled MiB", "peak MiB", "estimated MiB", "s/epoch", "exactly once")
_NOTE = "limit: of the object store on Ray, of all memory on threads; peak: above the idle processes"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "1.4GB")
    parser.add_argument("--object-store", type=read_size, default="140MB", help="size of Ray's object store")
    parser.add_argument("--memory-limit", default="165MB", help="memory limit of the threads executor")
    parser.add_argument("--window", default="45MB", help="window size in bytes or blocks")
    parser.add_argument("--block", default="20MB", help="target block size")
    parser.add_argument("--batch-size", type=read_count, default=8192, help="rows of a batch")
    parser.add_argument("--epochs", type=read_count, default=3, help="number of epochs")


def run(options: argparse.Namespace) -> int:
    """Stream within the limits and print the table; the exit status is 0 without breaches."""
    config = replace(read_config(options), object_store_bytes=options.object_store, timeout_seconds=120.0)
    facts = open_data(config)
    on_ray = replace(config, systems=("windrow-ray",), memory_limit=None)
    on_threads = replace(config, systems=("windrow-threads",))
    results = [*run_rounds(on_ray, facts), *run_rounds(on_threads, facts)]
    worked = [result for result in results if result.error is None]
    breaches = describe_breaches(results, facts)
    rows = [_write_line(result, facts) for result in worked]
    print()
    print_table(_HEADS, rows, {"system", "exactly once"}, _NOTE, *breaches)
    return 1 if breaches else 0


def _write_line(result: SystemResult, facts: Facts) -> tuple[str, ...]:
    store, estimate = result.store, result.estimate
    limit = store.size_bytes if store is not None else estimate.limit_bytes if estimate is not None else None
    return (
        describe_title(result),
        _write_mib(limit),
        describe_spilled(store.spilled_bytes) if store is not None else "-",
        _write_mib(result.peak_bytes),
        _write_mib(estimate.total_bytes if estimate is not None else None),
        f"{result.median_seconds():.2f}",
        worst_verdict(result, facts),
    )


def _write_mib(size_bytes: int | None) -> str:
    return write_cell(None if size_bytes is None else size_bytes / 2**20, "{:,.0f}")
