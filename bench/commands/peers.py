"""``python -m bench peers``: all rivals, in four parts: a table in large and in small batches, tokens, and text.

Loaders that process rows one at a time run on a sample of the rows, in small batches: they
would need an hour for a complete epoch, and their throughput does not depend on its length.
Throughput is compared in bytes, and with performance targets.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bench.data.shapes import find_files
from bench.peers.environments import find_version, is_ready, make_environment, make_sample
from bench.peers.names import PEERS
from bench.system.console import ProgressLine, add_names, align_table, read_count
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

_HEADS = ("system", "exactly once", "row groups a batch", "neighbours kept %", "order")
_NOTE = (
    "row groups a batch: mean number of row groups in a batch, and that of a uniform order; "
    "neighbours kept: rows delivered next to one of their neighbours in storage"
)
_AS_WELL = 0.95
_BOTH = ("windrow-threads", "windrow-ray")
_CACHED = ("windrow-threads-cached", "windrow-ray-cached")


@dataclass(frozen=True)
class Target:
    """``factor`` times the throughput of the fastest of some rivals, which one of ``ours`` has to reach.

    Rivals whose order is worse than that of every system in ``ours`` do not count if they have to shuffle ``as_well``.
    """

    against: str
    factor: float
    rivals: tuple[str, ...]
    ours: tuple[str, ...] = _BOTH
    as_well: bool = False


class TargetResult(NamedTuple):
    text: str
    met: bool


LARGE_TARGETS = (
    Target("Ray Data random_shuffle, reading again", 3.5, ("ray-shuffle",)),
    Target("Ray Data after materialize", 2.0, ("ray-materialize",), _CACHED),
    Target("Daft shuffle", 4.0, ("daft",), ("windrow-threads",)),
    Target("Petastorm's best loader", 8.0, ("petastorm", "petastorm-memory")),
)
SMALL_TARGETS = (
    Target("Ray Data after materialize", 8.0, ("ray-materialize",), _CACHED),
    Target("every loader by row", 50.0, tuple(name for name, peer in PEERS.items() if peer.by_row)),
)
_VARIABLE = tuple(name for name, peer in PEERS.items() if peer.rival and peer.variable_too)
CONTENT_TARGETS = {
    kind: (Target(f"the best loader of {kind} that shuffles as well", 5.0, _VARIABLE, as_well=True),)
    for kind in ("tokens", "text")
}
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
            # one epoch more, because the last, in which rows are identified, does not count
            content = replace(small, epochs=small.epochs + 1, rival_epochs=small.rival_epochs + 1)
            paths = find_files(kind, content.folder / "shapes", content.size_bytes)
            whole = describe_files(content, [str(Path(path).resolve()) for path in paths])
            measured.append(_measure(kind, content, whole, targets, sample_rows))
    return _report(config, measured, list(unable.values()))


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
    results = [(result, whole) for result in run_rounds(replace(config, systems=together), whole)]
    scans = [result for result, _ in results if result.system == "scan" and result.error is None]
    if scans and not scan_rate:
        scan_rate = whole.decoded_bytes / scans[0].median_seconds()
    sample = None
    if by_row:
        paths = make_sample(whole.paths, min(sample_rows, whole.rows), config.folder)
        sample = read_facts(paths, count_cores())
        of_sample = run_rounds(replace(config, systems=tuple(by_row)), sample)
        results += [(result, sample) for result in of_sample]
    return Part(name, config, whole, sample, results, targets, scan_rate)


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
    """Results with the facts about what was read, all rows or the sample; bytes per second of the scan."""

    title: str
    config: BenchConfig
    whole: Facts
    sample: Facts | None
    results: Sequence[tuple[SystemResult, Facts]]
    targets: Sequence[Target]
    scan_rate: float | None

    def summaries(self) -> dict[str, Summary]:
        rate = self.scan_rate
        return {
            result.system: summarize(result, facts, facts.decoded_bytes / rate if rate else None)
            for result, facts in self.results
            if result.error is None
        }

    def breaches(self) -> list[str]:
        """Failures of all systems, and breaches of windrow; delivery of rivals is shown in the table only."""
        return [
            breach
            for result, facts in self.results
            if result.error is not None or not PEERS[result.system].rival
            for breach in describe_breaches([result], facts)
        ]


def draw_orders(summaries: Mapping[str, Summary]) -> str:
    """One line per system that delivers rows, with the worst of its steady epochs."""
    lines = [_write_line(one) for name, one in summaries.items() if PEERS[name].delivers]
    return "\n".join([align_table(_HEADS, lines, {"system", "exactly once"}), _NOTE])


def shuffles_as_well(one: Summary, other: Summary) -> bool:
    """Whether the first order is as random as the second, but for a twentieth, by every measure of it.

    An order that was not measured is not as random.
    """
    if one.order is None or other.order is None:
        return False
    measured, wanted = (
        (each.neighbour_distance, each.groups_a_batch / each.groups_expected, 1 - each.neighbours_kept)
        for each in (one.order, other.order)
    )
    return all(mine >= _AS_WELL * theirs for mine, theirs in zip(measured, wanted, strict=True))


def _write_line(one: Summary) -> tuple[str, ...]:
    cells, order = ("-", "-", "-"), one.order
    if order is not None:
        groups = f"{order.groups_a_batch:.1f} of {order.groups_expected:.1f}"
        cells = groups, f"{100 * order.neighbours_kept:.2f}", f"{order.neighbour_distance:.2f}"
    return (one.title, one.exactly_once, *cells)


def check_targets(targets: Sequence[Target], summaries: Mapping[str, Summary]) -> list[TargetResult]:
    """The result of each target for which a rival and a windrow system were measured."""
    return [one for target in targets if (one := _check_target(target, summaries)) is not None]


def _check_target(target: Target, summaries: Mapping[str, Summary]) -> TargetResult | None:
    ours = [summaries[name] for name in target.ours if name in summaries]
    rivals = [summaries[name] for name in target.rivals if name in summaries]
    if target.as_well:
        rivals = [rival for rival in rivals if any(shuffles_as_well(rival, one) for one in ours)]
    if not rivals or not ours:
        return None
    best = max(rivals, key=lambda one: one.megabytes_per_second)
    times = {one.title: one.megabytes_per_second / best.megabytes_per_second for one in ours}
    factors_text = "; ".join(
        f"{title} {factor:.1f} x, {'met' if factor >= target.factor else 'NOT met'}"
        for title, factor in times.items()
    )
    fastest = f" (fastest: {best.title})" if len(target.rivals) > 1 else ""
    text = f"{target.factor:g} x {target.against}{fastest}: {factors_text}"
    return TargetResult(text, max(times.values()) >= target.factor)
