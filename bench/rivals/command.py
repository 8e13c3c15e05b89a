"""``python -m bench peers``: all rivals, in four parts: a table in large and in small batches, tokens, and text.

Loaders that process rows one at a time run on a sample of the rows, in small batches: they
would need an hour for a complete epoch, and their throughput does not depend on its length.
Throughput is compared in bytes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.data.shapes import find_files
from bench.peers.environments import find_version, is_ready, make_environment, make_sample
from bench.peers.names import PEERS
from bench.rivals.targets import (
    CONTENT_TARGETS,
    LARGE_TARGETS,
    SMALL_TARGETS,
    Target,
    check_targets,
    draw_orders,
)
from bench.system.console import ProgressLine, add_names, read_count
from bench.system.machine import count_cores
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, add_throughput, read_throughput
from bench.throughput.report import (
    Summary,
    describe_breaches,
    describe_files,
    draw_table,
    open_data,
    summarize,
)
from bench.training.facts import Facts, read_facts
from bench.training.results import SystemResult

PARTS = ("large", "small", *CONTENT_TARGETS)
_PEERS = ",".join(
    name for name, peer in PEERS.items() if peer.rival or name in ("scan", "torch-scan") or peer.cached
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_throughput(parser)
    add_names(
        parser, "--parts", PARTS, help="the table in large and in small batches, data of lists and of strings"
    )
    parser.add_argument(
        "--small-batch-size", type=read_count, default=1024, help="batch size of all parts but the first"
    )
    parser.add_argument(
        "--sample-rows", type=read_count, default=131_072, help="rows of the sample for row-wise loaders"
    )
    parser.set_defaults(executor="both", peers=_PEERS, rival_epochs=3)


def run(options: argparse.Namespace) -> int:
    """Run all systems and print the tables; the exit status is 0 if all ran and every target was met."""
    config, parts, sample_rows = read_throughput(options), options.parts, options.sample_rows
    chosen = [name for name in config.systems if any(_takes_part(name, part) for part in parts)]
    config = replace(config, systems=tuple(chosen))
    unable = dict(_set_up(config))
    able = replace(config, systems=tuple(name for name in chosen if name not in unable))
    small = replace(able, batch_size=options.small_batch_size)
    measured: list[Part] = []
    if "large" in parts or "small" in parts:
        whole = open_data(able)
        if "large" in parts:
            measured.append(_measure("large", able, whole, LARGE_TARGETS, sample_rows))
        if "small" in parts:
            rate = measured[0].scan_rate if measured else None
            measured.append(_measure("small", small, whole, SMALL_TARGETS, sample_rows, rate))
    for kind, targets in CONTENT_TARGETS.items():
        if kind in parts:
            content = _configure_content(small)
            paths = find_files(kind, content.folder / "shapes", content.size_bytes)
            whole = describe_files(content, [str(Path(path).resolve()) for path in paths])
            measured.append(_measure(kind, content, whole, targets, sample_rows))
    return _report(config, measured, list(unable.values()))


def _configure_content(config: BenchConfig) -> BenchConfig:
    """One epoch more, because the last, in which rows are identified, does not count."""
    epochs, rival_epochs = config.epochs + 1, config.rival_epochs + 1
    return replace(config, epochs=epochs, rival_epochs=rival_epochs)


def _takes_part(system: str, part: str) -> bool:
    peer = PEERS[system]
    if part in CONTENT_TARGETS:
        return peer.variable_too
    return not peer.by_row if part == "large" else peer.by_row or peer.small_too


def _set_up(config: BenchConfig) -> Iterator[tuple[str, str]]:
    line = ProgressLine()
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


def _measure(
    name: str,
    config: BenchConfig,
    whole: Facts,
    targets: Sequence[Target],
    sample_rows: int,
    scan_rate: float | None = None,
) -> Part:
    """Measure one part; its own scan gives the rate of the scan unless that is known."""
    systems = [system for system in config.systems if _takes_part(system, name)]
    by_row = [system for system in systems if PEERS[system].by_row]
    together = tuple(system for system in systems if system not in by_row)
    results = run_rounds(replace(config, systems=together), whole)
    part = Part(name, config, whole, results, targets, scan_rate or find_scan_rate(results, whole))
    if not by_row:
        return part
    rows = min(sample_rows, whole.rows)
    paths = make_sample(whole.paths, rows, config.folder)
    sample = read_facts(paths, count_cores())
    results = run_rounds(replace(config, systems=tuple(by_row)), sample)
    return replace(part, sample=sample, by_row=results)


def _report(config: BenchConfig, parts: Sequence[Part], unable: Sequence[str]) -> int:
    for part in parts:
        if summaries := part.summaries():
            print("", _write_head(part), "", draw_table(list(summaries.values())), sep="\n")
            print("", draw_orders(summaries), sep="\n")
    target_results = [one for part in parts for one in check_targets(part.targets, part.summaries())]
    breaches = [*unable, *(breach for part in parts for breach in part.breaches())]
    print("", _write_versions(config.systems), *[one.text for one in target_results], *breaches, sep="\n")
    return 1 if breaches or not all(one.met for one in target_results) else 0


def _write_versions(systems: Sequence[str]) -> str:
    peers = [PEERS[name] for name in systems]
    versions = {peer.library: find_version(peer.library, peer.environment) for peer in peers if peer.library}
    return "versions: " + (", ".join(f"{name} {version}" for name, version in versions.items()) or "none")


def _write_head(part: Part) -> str:
    head = f"batches of {part.config.batch_size:,}"
    if part.title in CONTENT_TARGETS:
        head = f"{part.title}: {part.whole.rows:,} rows, {part.whole.decoded_bytes / 1e6:,.0f} MB decoded; {head}"
    return head if part.sample is None else f"{head}; loaders by row on the first {part.sample.rows:,} rows"


@dataclass(frozen=True)
class Part:
    """Results of the systems that read all rows, and of those that read the sample; bytes per second of the scan."""

    title: str
    config: BenchConfig
    whole: Facts
    results: Sequence[SystemResult]
    targets: Sequence[Target]
    scan_rate: float | None
    sample: Facts | None = None
    by_row: Sequence[SystemResult] = ()

    def summaries(self) -> dict[str, Summary]:
        rate = self.scan_rate
        return {
            result.system: summarize(result, facts, facts.decoded_bytes / rate if rate else None)
            for result, facts in self._with_facts()
            if result.error is None
        }

    def breaches(self) -> list[str]:
        """Failures of all systems, and breaches of windrow; delivery of rivals is shown in the table only."""
        return [
            breach
            for result, facts in self._with_facts()
            if result.error is not None or not PEERS[result.system].rival
            for breach in describe_breaches([result], facts)
        ]

    def _with_facts(self) -> list[tuple[SystemResult, Facts]]:
        on_sample = [] if self.sample is None else [(result, self.sample) for result in self.by_row]
        return [*((result, self.whole) for result in self.results), *on_sample]


def find_scan_rate(results: Sequence[SystemResult], facts: Facts) -> float | None:
    scans = [one for one in results if one.system == "scan" and one.error is None]
    return facts.decoded_bytes / scans[0].median_seconds() if scans else None
