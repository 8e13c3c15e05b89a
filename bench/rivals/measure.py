"""Comparison with all rivals, in two parts: large batches and small batches.

Loaders that process rows one at a time run in the second part, on a sample of the rows: they
would need an hour for a complete epoch, and their throughput does not depend on its length.
Throughput is compared in bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.config import BenchConfig, find_data
from bench.facts import read_facts
from bench.machine import count_cores, describe_machine
from bench.peers import PEERS
from bench.progress import ProgressLine
from bench.report import draw_table, print_head, write_json
from bench.results import SystemResult
from bench.rivals.environments import find_version, is_ready, make_environment
from bench.rivals.orders import draw_orders
from bench.rivals.part import Files, Part
from bench.rivals.sample import make_sample
from bench.rivals.targets import LARGE_TARGETS, SMALL_TARGETS
from bench.rounds import run_rounds

__all__ = ["measure_rivals"]


def measure_rivals(config: BenchConfig, small_batch_size: int, sample_rows: int) -> int:
    """Run all systems and print the tables; the exit status is 0 if all ran and every target was met."""
    line = ProgressLine(sys.stderr)
    paths = find_data(config, line)
    whole = Files(paths, read_facts(paths, config.columns, config.key, count_cores()))
    machine = describe_machine()
    print_head(config, whole.facts, machine, len(paths))
    unable = dict(_set_up(config, line))
    able = replace(config, systems=tuple(name for name in config.systems if name not in unable))
    large = _measure_large(able, whole, line)
    small = _measure_small(replace(able, batch_size=small_batch_size), whole, sample_rows, line)
    return _report(config, [large, small], list(unable.values()), machine)


def _set_up(config: BenchConfig, line: ProgressLine) -> Iterator[tuple[str, str]]:
    """Set up missing environments; yields the systems whose environment failed, with the reason."""
    for name in sorted({PEERS[system].environment or "" for system in config.systems} - {""}):
        if is_ready(config.folder, name):
            continue
        line.start(f"installing {name}")
        try:
            make_environment(config.folder, name, config.folder / "logs" / f"install-{name}.log")
            line.finish("done")
        except ValueError as error:
            line.finish("FAILED")
            lacking = [system for system in config.systems if PEERS[system].environment == name]
            yield from ((system, f"{PEERS[system].title}: FAILED, {error}") for system in lacking)


def _measure_large(config: BenchConfig, whole: Files, line: ProgressLine) -> Part:
    systems = [name for name in config.systems if not PEERS[name].by_row]
    return Part(config, whole.facts, _run(config, systems, whole, line), LARGE_TARGETS)


def _measure_small(config: BenchConfig, whole: Files, sample_rows: int, line: ProgressLine) -> Part:
    systems = [name for name in config.systems if PEERS[name].small_too]
    part = Part(config, whole.facts, _run(config, systems, whole, line), SMALL_TARGETS)
    by_row = [name for name in config.systems if PEERS[name].by_row]
    if not by_row:
        return part
    rows = min(sample_rows, whole.facts.rows)
    paths = make_sample(whole.paths, whole.facts.tensor_columns, rows, config.folder)
    sample = Files(paths, read_facts(paths, None, config.key, count_cores()))
    return replace(part, sample=sample.facts, by_row=_run(config, by_row, sample, line))


def _run(config: BenchConfig, systems: Sequence[str], files: Files, line: ProgressLine) -> list[SystemResult]:
    return run_rounds(replace(config, systems=tuple(systems)), files.paths, files.facts, line)


def _report(
    config: BenchConfig, parts: Sequence[Part], unable: Sequence[str], machine: dict[str, Any]
) -> int:
    rate = parts[0].scan_rate()
    for part in parts:
        if summaries := part.summaries(rate):
            print("", _write_head(part), "", draw_table(list(summaries.values())), sep="\n")
            print("", draw_orders(summaries, config.window), sep="\n")
    target_results = [one for part in parts for one in part.check_targets(rate)]
    breaches = [*unable, *(breach for part in parts for breach in part.breaches())]
    print("", _write_versions(config.systems), *[one.text for one in target_results], *breaches, sep="\n")
    if config.json is not None:
        report = {
            "targets": [asdict(one) for one in target_results],
            "breaches": breaches,
            "versions": _list_versions(config.systems),
            "parts": [part.describe(rate, machine) for part in parts],
        }
        write_json(config.json, report)
    if config.plot is not None:
        from bench.plot import draw_plot

        draw_plot(parts[0].results, list(parts[0].summaries(rate).values()), config.plot)
        print(f"written: {config.plot}")
    return 1 if breaches or not all(one.met for one in target_results) else 0


def _list_versions(systems: Sequence[str]) -> dict[str, str]:
    """The version of every measured library."""
    peers = [PEERS[name] for name in systems]
    return {peer.library: find_version(peer.library, peer.environment) for peer in peers if peer.library}


def _write_versions(systems: Sequence[str]) -> str:
    versions = _list_versions(systems)
    return "versions: " + (", ".join(f"{name} {version}" for name, version in versions.items()) or "none")


def _write_head(part: Part) -> str:
    head = f"batches of {part.config.batch_size:,}"
    return head if part.sample is None else f"{head}; loaders by row on the first {part.sample.rows:,} rows"
