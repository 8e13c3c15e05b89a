"""Two parts: large batches, and small ones.

The loaders that handle rows one at a time run in the second, on a sample of the rows:
at their pace an epoch of everything would take an hour, and their rates do not depend
on its length. Rates are compared by bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.asked import Asked, find_data
from bench.facts import read_facts
from bench.machine import count_cores, describe_machine
from bench.peers import PEERS
from bench.progress import ProgressLine
from bench.report import draw_table, print_head, write_json
from bench.results import SystemResult
from bench.rivals.bars import LARGE_BARS, SMALL_BARS
from bench.rivals.environments import find_version, is_ready, make_environment
from bench.rivals.orders import draw_orders
from bench.rivals.part import Files, Part
from bench.rivals.sample import make_sample
from bench.rounds import run_rounds

__all__ = ["measure_rivals"]


def measure_rivals(asked: Asked, small_batch_size: int, sample_rows: int) -> int:
    """Run everything, print the tables and the judgements; 0 when all ran and every bar was held."""
    line = ProgressLine(sys.stderr)
    paths = find_data(asked, line)
    whole = Files(paths, read_facts(paths, asked.columns, asked.key, count_cores()))
    machine = describe_machine()
    print_head(asked, whole.facts, machine, len(paths))
    unable = dict(_set_up(asked, line))
    able = replace(asked, systems=tuple(name for name in asked.systems if name not in unable))
    large = _measure_large(able, whole, line)
    small = _measure_small(replace(able, batch_size=small_batch_size), whole, sample_rows, line)
    return _report(asked, [large, small], list(unable.values()), machine)


def _set_up(asked: Asked, line: ProgressLine) -> Iterator[tuple[str, str]]:
    """Make the environments that are missing; tell the systems that have none and why."""
    for name in sorted({PEERS[system].environment or "" for system in asked.systems} - {""}):
        if is_ready(asked.folder, name):
            continue
        line.start(f"installing {name}")
        try:
            make_environment(asked.folder, name, asked.folder / "logs" / f"install-{name}.log")
            line.finish("done")
        except ValueError as error:
            line.finish("FAILED")
            lacking = [system for system in asked.systems if PEERS[system].environment == name]
            yield from ((system, f"{PEERS[system].title}: FAILED, {error}") for system in lacking)


def _measure_large(asked: Asked, whole: Files, line: ProgressLine) -> Part:
    systems = [name for name in asked.systems if not PEERS[name].by_row]
    return Part(asked, whole.facts, _run(asked, systems, whole, line), LARGE_BARS)


def _measure_small(asked: Asked, whole: Files, sample_rows: int, line: ProgressLine) -> Part:
    systems = [name for name in asked.systems if PEERS[name].small_too]
    part = Part(asked, whole.facts, _run(asked, systems, whole, line), SMALL_BARS)
    by_row = [name for name in asked.systems if PEERS[name].by_row]
    if not by_row:
        return part
    rows = min(sample_rows, whole.facts.rows)
    paths = make_sample(whole.paths, whole.facts.tensor_columns, rows, asked.folder)
    sample = Files(paths, read_facts(paths, None, asked.key, count_cores()))
    return replace(part, sample=sample.facts, by_row=_run(asked, by_row, sample, line))


def _run(asked: Asked, systems: Sequence[str], files: Files, line: ProgressLine) -> list[SystemResult]:
    return run_rounds(replace(asked, systems=tuple(systems)), files.paths, files.facts, line)


def _report(asked: Asked, parts: Sequence[Part], unable: Sequence[str], machine: dict[str, Any]) -> int:
    rate = parts[0].scan_rate()
    for part in parts:
        if figures := part.figures(rate):
            print("", _write_head(part), "", draw_table(list(figures.values())), sep="\n")
            print("", draw_orders(figures, asked.window), sep="\n")
    judged = [one for part in parts for one in part.judge(rate)]
    breaches = [*unable, *(breach for part in parts for breach in part.breaches())]
    print("", _write_versions(asked.systems), *[one.text for one in judged], *breaches, sep="\n")
    if asked.json is not None:
        told = {
            "bars": [asdict(one) for one in judged],
            "breaches": breaches,
            "versions": _list_versions(asked.systems),
            "parts": [part.describe(rate, machine) for part in parts],
        }
        write_json(asked.json, told)
    if asked.plot is not None:
        from bench.plot import draw_plot

        draw_plot(parts[0].results, list(parts[0].figures(rate).values()), asked.plot)
        print(f"written: {asked.plot}")
    return 1 if breaches or not all(one.held for one in judged) else 0


def _list_versions(systems: Sequence[str]) -> dict[str, str]:
    """The version of every library that was measured beside ours."""
    peers = [PEERS[name] for name in systems]
    return {peer.library: find_version(peer.library, peer.environment) for peer in peers if peer.library}


def _write_versions(systems: Sequence[str]) -> str:
    versions = _list_versions(systems)
    return "versions: " + (", ".join(f"{name} {version}" for name, version in versions.items()) or "none")


def _write_head(part: Part) -> str:
    head = f"batches of {part.asked.batch_size:,}"
    return head if part.sample is None else f"{head}; loaders by row on the first {part.sample.rows:,} rows"
