"""``python -m bench shapes``: shuffled epochs beside a raw scan, for files of many kinds."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.data.shapes import SHAPES, find_files
from bench.system.console import (
    ProgressLine,
    add_data,
    add_json,
    add_names,
    add_turns,
    print_table,
    write_json,
)
from bench.system.machine import print_machine
from bench.system.processes import SystemProcess, start_systems

# of Ray's object store
STORE_BYTES = 2 * 10**9
_HEADS = ("shape", "system", "s", "CPU s", "of the scan", "by CPU", "asked", "plan s")
_NOTE = (
    "scan: pyarrow decodes every row group, file by file on a thread a core, and keeps nothing. of the scan: its "
    "seconds over those of threads; by CPU: the same of CPU seconds. Each is a "
    "mean of several epochs after the second one, and the median of the rounds, in turns. asked: by CPU on threads to "
    "Arrow. plan s: seconds from read_parquet() to the plan of the pipeline."
)
_MEDIANS = ("seconds", "cpu_seconds", "plan_seconds")
# the one that is judged
_JUDGED = "threads"

# system -> measurements of the rounds
Found = Mapping[str, Sequence[Mapping[str, float]]]


def add_options(parser: argparse.ArgumentParser) -> None:
    usual = [name for name, shape in SHAPES.items() if shape.by_default]
    add_measured(parser, shapes=usual)
    more = ", ".join(name for name in SHAPES if name not in usual)
    parser.add_argument("--all", action="store_true", help=f"all shapes, also those that take long: {more}")
    add_turns(parser, rounds=3, epochs=8)


def add_measured(parser: argparse.ArgumentParser, *, shapes: Iterable[str]) -> None:
    """Options that say what is measured, of this and other commands on the same data."""
    add_names(parser, "--shapes", SHAPES, default=shapes, help="the shapes")
    add_data(parser, "200MB", ".bench/shapes")
    add_json(parser)


def request_shape(name: str, options: argparse.Namespace) -> dict[str, Any]:
    shape = SHAPES[name]
    return {
        "paths": find_files(name, options.folder, options.size_bytes),
        "epochs": options.epochs,
        "window": shape.window,
        "memory_limit": shape.memory_limit,
    }


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if every shape reaches what is asked."""
    print(
        f"{options.size_bytes / 1e6:,.0f} MB decoded each, but for shapes with a size of their own; "
        f"{options.rounds} rounds of {options.epochs} epochs"
    )
    machine = print_machine()
    found, rows, missed, errors = {}, [], [], []
    with start_systems("bench.shapes.systems", ("scan", _JUDGED), options.folder, STORE_BYTES) as processes:
        for name in SHAPES if options.all else options.shapes:
            request = request_shape(name, options)
            if not request["paths"]:
                errors.append(f"{name}: its file is not here, ../shared/data/flights-3m.parquet")
                continue
            found[name] = measured = _measure(name, request, processes, options.rounds)
            of_shape, is_met = summarize_shape(name, measured)
            rows += of_shape
            missed += [] if is_met else [name]
            errors += [
                f"{name}: {each['error']}" for some in measured.values() for each in some if "error" in each
            ]
    verdict = f"below what is asked: {', '.join(missed)}" if missed else "every shape reaches what is asked"
    print_table(_HEADS, rows, ("shape", "system"), _NOTE, verdict, *errors)
    write_json(options, {"machine": machine, "size_bytes": options.size_bytes, "shapes": found})
    return int(bool(missed or errors))


def _measure(
    name: str, request: Mapping[str, Any], processes: Sequence[SystemProcess], rounds: int
) -> dict[str, list[dict[str, float]]]:
    line = ProgressLine()
    found: dict[str, list[dict[str, float]]] = {process.name: [] for process in processes}
    for number in range(rounds):
        line.start(f"{name}, round {number + 1} of {rounds}")
        for process in processes:
            found[process.name].append(process.run(request))
        line.finish("")
    return found


def summarize_shape(name: str, found: Found) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of one shape in the table, and whether what is judged reaches what is asked."""
    shape, is_met = SHAPES[name], True
    rows: list[tuple[str, ...]] = []
    medians = {
        system: tuple(statistics.median(each.get(what, 0.0) for each in some) for what in _MEDIANS)
        for system, some in found.items()
        if not any("error" in each for each in some)
    }
    scan = medians.get("scan")
    for system, (seconds, cpu_seconds, plan_seconds) in medians.items():
        cells = ["-", "-", "", ""]
        if system == _JUDGED:
            cells[2:] = f"{shape.asked:.2f}", f"{plan_seconds:.2f}"
            if scan is not None:
                by_cpu = scan[1] / cpu_seconds
                cells[:2] = f"{scan[0] / seconds:.2f}", f"{by_cpu:.2f}"
                is_met = by_cpu >= shape.asked
        rows.append((shape.title, system, f"{seconds:.3f}", f"{cpu_seconds:.3f}", *cells))
    return rows, is_met
