"""``python -m bench shapes``: shuffled epochs beside a raw scan, for files of many kinds."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.data.shapes import SHAPES, find_files
from bench.shapes.plot import draw_shares
from bench.shapes.systems import EXECUTORS, FORMATS
from bench.system.console import ProgressLine, align_table, choose_names, read_size, write_cell
from bench.system.machine import describe_load, describe_machine
from bench.system.processes import SystemProcess

_HEADS = ("shape", "system", "to", "s", "CPU s", "of the scan", "by CPU", "asked", "plan s")
_NOTE = (
    "scan: pyarrow decodes every row group, file by file on a thread a core, and keeps nothing. of the scan: its "
    "seconds over those of the system; by CPU: the same of CPU seconds, on Ray those of all its processes. Each is a "
    "mean of several epochs after the second one, and the median of the rounds, in turns. asked: by CPU on threads to "
    "Arrow. plan s: seconds from read_parquet() to the plan of the pipeline."
)
_MEDIANS = ("seconds", "cpu_seconds", "plan_seconds")
# the one that is judged
_JUDGED = ("threads", "arrow")

# (system, format) -> measurements of the rounds
Found = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Options of ``shapes``."""
    usual = [name for name, shape in SHAPES.items() if shape.by_default]
    add_measured(parser, shapes=",".join(usual))
    more = ", ".join(name for name in SHAPES if name not in usual)
    parser.add_argument("--all", action="store_true", help=f"all shapes, also those that take long: {more}")
    parser.add_argument("--formats", default="arrow", help="of arrow, numpy, torch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs in each (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for one measurement (%(default)s)"
    )
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw the shares of the scan as SVG or PNG")


def add_measured(parser: argparse.ArgumentParser, *, shapes: str, executors: bool = True) -> None:
    """Options that say what is measured, of this and other commands on the same data."""
    parser.add_argument("--shapes", default=shapes, help="the shapes (default: %(default)s)")
    parser.add_argument("--size", default="200MB", help="decoded size of each (default: %(default)s)")
    if executors:
        parser.add_argument(
            "--executor", default="threads", help="threads, ray or both (default: %(default)s)"
        )
    parser.add_argument("--window", metavar="SIZE", help="bytes per window (default: one window)")
    parser.add_argument("--folder", type=Path, default=Path(".bench/shapes"), help="folder of generated data")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all results as JSON")


def choose_executors(options: argparse.Namespace) -> list[str]:
    """The executors that ``--executor`` names."""
    given = "threads,ray" if options.executor == "both" else options.executor
    return list(choose_names("--executor", given, EXECUTORS))


def run_shapes(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if every shape reaches what is asked."""
    names = list(SHAPES) if options.all else choose_names("--shapes", options.shapes, tuple(SHAPES))
    executors = choose_executors(options)
    formats = choose_names("--formats", options.formats, FORMATS)
    if options.rounds < 1 or options.epochs < 1:
        raise ValueError("--rounds and --epochs: 1 or more")
    size_bytes = read_size(options.size, "--size")
    window = None if options.window is None else read_size(options.window, "--window")
    machine = describe_machine()
    print(
        f"{options.size} decoded each, but for shapes with a size of their own; {options.rounds} rounds of "
        f"{options.epochs} epochs"
    )
    print(describe_load(machine), flush=True)
    found, rows, missed, errors = {}, [], [], []
    with ExitStack() as stack:
        processes = {}
        for system in ("scan", *executors):
            arguments, log = ["bench.shapes.systems", system], options.folder / f"{system}.log"
            options.folder.mkdir(parents=True, exist_ok=True)
            processes[system] = SystemProcess(system, arguments, log, options.timeout)
            stack.callback(processes[system].close)
        for name in names:
            paths = find_files(name, options.folder, size_bytes)
            if not paths:
                errors.append(f"{name}: its file is not here, ../shared/data/flights-3m.parquet")
                continue
            request = {
                "paths": paths,
                "epochs": options.epochs,
                "window": window or SHAPES[name].window,
                "memory_limit": SHAPES[name].memory_limit,
                "ragged": SHAPES[name].ragged,
            }
            measured = _measure(name, request, processes, formats, options.rounds)
            found[name] = {" ".join(key): list(each) for key, each in measured.items()}
            of_shape, is_met = summarize_shape(name, measured)
            rows += of_shape
            missed += [] if is_met else [name]
            errors += [
                f"{name}: {each['error']}" for some in measured.values() for each in some if "error" in each
            ]
    print(align_table(_HEADS, rows, ("shape", "system", "to")), _NOTE, sep="\n")
    print(f"below what is asked: {', '.join(missed)}" if missed else "every shape reaches what is asked")
    print(*errors, sep="\n", end="\n" if errors else "")
    if options.json is not None:
        content = {"machine": machine, "size": options.size, "window": options.window, "shapes": found}
        options.json.write_text(json.dumps(content, indent=1))
    if options.plot is not None:
        draw_shares(rows, options.plot)
    return int(bool(missed or errors))


def _measure(
    name: str,
    request: Mapping[str, Any],
    processes: Mapping[str, SystemProcess],
    formats: Sequence[str],
    rounds: int,
) -> dict[tuple[str, str], list[dict[str, float]]]:
    line = ProgressLine(sys.stderr)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(rounds):
        line.start(f"{name}, round {number + 1} of {rounds}")
        for system, process in processes.items():
            for form in [""] if system == "scan" else formats:
                if form != "torch" or SHAPES[name].tensors:
                    found.setdefault((system, form), []).append(
                        process.run(json.dumps({**request, "form": form}))
                    )
        line.finish("")
    return found


def summarize_shape(name: str, found: Found) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of one shape in the table, and whether what is judged reaches what is asked."""
    shape, is_met = SHAPES[name], True
    rows: list[tuple[str, ...]] = []
    medians = {
        key: tuple(statistics.median(each.get(what, 0.0) for each in some) for what in _MEDIANS)
        for key, some in found.items()
        if not any("error" in each for each in some)
    }
    scan = medians.get(("scan", ""))
    for (system, form), (seconds, cpu_seconds, plan_seconds) in medians.items():
        is_compared = scan is not None and system != "scan"
        share = scan[0] / seconds if scan is not None and is_compared else None
        by_cpu = scan[1] / cpu_seconds if scan is not None and is_compared else None
        is_judged = (system, form) == _JUDGED
        is_met = is_met and not (is_judged and by_cpu is not None and by_cpu < shape.asked)
        cells = (
            f"{seconds:.3f}",
            f"{cpu_seconds:.3f}",
            write_cell(share, "{:.2f}"),
            write_cell(by_cpu, "{:.2f}"),
        )
        planned = "" if system == "scan" else f"{plan_seconds:.2f}"
        rows.append((shape.title, system, form, *cells, f"{shape.asked:.2f}" if is_judged else "", planned))
    return rows, is_met
