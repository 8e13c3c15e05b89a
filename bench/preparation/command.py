"""``python -m bench preparation``: decoding images and tokenizing text, in windrow and beside bare loops, in turns."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bench.preparation.systems import COMPUTE, PARTS, SYSTEMS, make_files
from bench.shapes.command import STORE_BYTES
from bench.system.console import (
    ProgressLine,
    add_json,
    add_names,
    add_turns,
    print_table,
    read_count,
    read_counts,
    write_cell,
    write_json,
)
from bench.system.machine import print_machine
from bench.system.processes import start_systems

# what windrow has to reach where its functions have processes of their own, of what others reach
_LEAST = {"processes": 0.9, "torch": 1.2, "ray": 5.0}
_TITLES = {"processes": "bare processes", "torch": "torch's DataLoader", "ray": "Ray Data"}
_MOST_WAITED = 0.03
_PLACES = ("before", "after")
_TEXTS = ("rows", "system", "shuffle", "compute")
_RATIOS = ("of processes", "least", "most", "by CPU", "x DataLoader", "x Ray Data")
_HEADS = (*_TEXTS, "trainers", "rows/s", *_RATIOS, "waits %")
_NOTE = (
    "processes, threads: one a core, which apply the function to their share of the rows in memory, and do nothing "
    "else. shuffle: whether the function comes before or after it. Ratios are medians over the rounds, in turns, with "
    "the least and the most. by CPU: the CPU seconds of bare processes over those of "
    "a system, with all its processes. waits: with steps that take as long as the preparation."
)


@dataclass(frozen=True)
class Case:
    system: str
    place: str = ""
    compute: str = ""
    trainers: int = 1

    def __str__(self) -> str:
        trainers = f"{self.trainers} trainers" if self.trainers > 1 else ""
        return ", ".join(each for each in (self.system, self.place, self.compute, trainers) if each)


# by case, what each round gave
Found = Mapping[Case, Sequence[Mapping[str, Any]]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "--parts", PARTS, help="what is prepared")
    parser.add_argument("--images", type=read_count, default=4_000, help="number of images")
    parser.add_argument("--text", type=read_count, default=8_000, help="number of documents")
    add_names(parser, "--systems", SYSTEMS, help="the systems (ray is Ray Data)")
    add_names(parser, "--places", _PLACES, help="where the function is, seen from the shuffle")
    add_names(
        parser,
        "--compute",
        COMPUTE,
        default=["none", "processes"],
        help="what it runs on (pool: an ActorPool)",
    )
    parser.add_argument(
        "--trainers", type=read_counts, default="1,2", metavar="N,M", help="numbers of windrow's trainers"
    )
    add_turns(parser, rounds=3, epochs=2)
    parser.add_argument(
        "--work", action="store_true", help="measure also what trainers wait that take as long"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(".bench/preparation"), help="folder of generated data"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if all that windrow has to reach is met."""
    parts, cases, line = options.parts, list_cases(options), ProgressLine()
    folders = {part: str(make_files(part, getattr(options, part), options.folder)) for part in parts}
    print(f"{options.rounds} rounds of {options.epochs} epochs")
    machine = print_machine()
    found: dict[str, dict[Case, list[dict[str, Any]]]] = {
        part: {case: [] for case in cases} for part in parts
    }
    systems = start_systems("bench.preparation.systems", options.systems, options.folder, STORE_BYTES)
    with systems as processes:
        running = {process.name: process for process in processes}
        for part, number, case in product(parts, range(options.rounds), cases):
            line.start(f"{part}, round {number + 1}: {case}")
            given = {"part": part, "folder": folders[part], "epochs": options.epochs, "work": options.work}
            answer = running[case.system].run({**given, **asdict(case)})
            found[part][case].append(answer)
            line.finish(answer.get("error") or f"{answer['rows'] / answer['seconds']:,.0f} rows/s")
    summaries = [summarize_part(part, found[part]) for part in parts]
    rows = [row for one, _, _ in summaries for row in one]
    missed = [text for _, some, _ in summaries for text in some]
    errors = [text for _, _, some in summaries for text in some]
    asked = [f"{least:g} x {_TITLES[name]}" for name, least in _LEAST.items()]
    asked.append(f"waits of at most {_MOST_WAITED:.0%}")
    verdict = f"missed by {'; '.join(missed)}" if missed else "met"
    print_table(_HEADS, rows, _TEXTS, _NOTE, f"{'; '.join(asked)}: {verdict}", *errors)
    results = [
        {"part": part, **asdict(case), "rounds": of_case}
        for part, of_part in found.items()
        for case, of_case in of_part.items()
    ]
    write_json(options, {"machine": machine, "results": results})
    return int(bool(missed or errors))


def list_cases(options: argparse.Namespace) -> list[Case]:
    cases = []
    for name in options.systems:
        if name.startswith("windrow"):
            cases += [Case(name, *way) for way in product(options.places, options.compute, options.trainers)]
        else:
            cases.append(Case(name, "after" if name == "ray" else ""))
    return cases


def summarize_part(part: str, found: Found) -> tuple[list[tuple[str, ...]], list[str], list[str]]:
    """The rows of one part in the table, what it misses, and what is wrong."""
    failed = {case: each["error"] for case, some in found.items() for each in some if "error" in each}
    errors = [f"{part}, {case}: {error}" for case, error in failed.items()]
    good = {case: some for case, some in found.items() if case not in failed}
    prepared = {(each["rows"], each["total"]): str(case) for case, some in good.items() for each in some}
    if len(prepared) > 1:
        errors.append(f"{part}: not every system gives the same rows: {prepared}")
    rates = {case: [each["rows"] / each["seconds"] for each in some] for case, some in good.items()}
    others = {case.system: rates[case] for case in rates if case.system in _LEAST}
    costs = {case: statistics.median(each["cpu_seconds"] for each in some) for case, some in good.items()}
    bare = costs.get(Case("processes"))
    rows: list[tuple[str, ...]] = []
    missed: list[str] = []
    for case, own in rates.items():
        ratios = {
            name: [one / other for one, other in zip(own, others[name], strict=True)] for name in others
        }
        medians = {name: statistics.median(some) for name, some in ratios.items()}
        waited = statistics.median(each.get("waited", math.nan) for each in good[case])
        of_processes = ratios.get("processes", [])
        cells = (
            write_cell(medians.get("processes"), "{:.2f}"),
            write_cell(min(of_processes, default=None), "{:.2f}"),
            write_cell(max(of_processes, default=None), "{:.2f}"),
            write_cell(bare and costs[case] and bare / costs[case], "{:.2f}"),
            write_cell(medians.get("torch"), "{:.2f}"),
            write_cell(medians.get("ray"), "{:.1f}"),
            write_cell(None if math.isnan(waited) else 100 * waited, "{:.1f}"),
        )
        names = (part, case.system, case.place, case.compute, f"{case.trainers}")
        rows.append((*names, f"{statistics.median(own):,.0f}", *cells))
        if case.compute not in ("", "none"):
            low = [
                f"{value:.2f} of {_TITLES[name]}" for name, value in medians.items() if value < _LEAST[name]
            ]
            low += [f"{waited:.1%} waited"] if waited > _MOST_WAITED else []
            missed += [f"{part}, {case} ({', '.join(low)})"] if low else []
    return rows, missed, errors
