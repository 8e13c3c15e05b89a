"""``python -m bench operations``: windrow's operations beside plain loops, Polars and Ray Data."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.operations.systems import make_files
from bench.system.console import (
    ProgressLine,
    add_data,
    add_json,
    add_names,
    add_turns,
    print_table,
    write_cell,
    write_json,
)
from bench.system.machine import print_machine
from bench.system.processes import start_systems

_TIMES_RAY_DATA = 2.0
_PEERS = ("polars", "ray")
_EXECUTORS = ("threads", "ray")
# their work is done in other processes, whose CPU time is not counted
_ELSEWHERE = ("windrow-ray", "ray")
_HEADS = ("operation", "system", "s", "of the reference", "by CPU", "times Ray Data")
_TITLES = {"plain": "plain loop", "polars": "Polars", "ray": "Ray Data"}
_NOTE = (
    "reference: for map_batches a plain loop over pyarrow's batches on one thread a core, for inference the model "
    "alone on one batch in memory, else Polars' streaming engine. Medians of the rounds after a first one, in turns. "
    "inference: from the end of its first batch. by CPU: the reference's CPU seconds over those of the system."
)


@dataclass(frozen=True)
class Operation:
    title: str
    reference: str
    # the share of the reference's speed that windrow has to reach, and on what
    least: float
    judged: tuple[str, ...] = ("windrow-threads",)
    # windrow also has to be faster than Ray Data; where all wait for a model, nothing can be
    beside_ray: bool = True
    tolerance: float = 1e-9


OPERATIONS: Mapping[str, Operation] = {
    "map": Operation("map_batches, batches consumed", "plain", 0.9),
    "map-nothing": Operation("map_batches, a row a batch", "plain", 0.9),
    "inference": Operation(
        "inference, ActorPool(1)",
        "plain",
        0.9,
        judged=("windrow-threads", "windrow-ray"),
        beside_ray=False,
        tolerance=1e-3,
    ),
    "groupby": Operation("groupby(key).mean(x)", "polars", 1 / 3),
    "sort": Operation("sort(order)", "polars", 1 / 3),
}

Measurements = Mapping[str, Sequence[Mapping[str, Any]]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "--operations", OPERATIONS, help="the operations")
    add_data(parser, "200MB", ".bench/operations")
    add_names(parser, "--executor", _EXECUTORS, help="where windrow runs")
    add_names(parser, "--peers", _PEERS, default=["polars"], help="what is compared beside plain loops")
    add_turns(parser, rounds=3)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if all that windrow has to reach is met."""
    names = ["plain", *(f"windrow-{name}" for name in options.executor), *options.peers]
    paths = make_files(options.folder, options.size_bytes)
    print(f"{options.size_bytes / 1e6:,.0f} MB decoded in {len(paths)} files, {options.rounds} rounds")
    machine = print_machine()
    found, errors = _measure(options.operations, names, paths, options)
    rows, missed = [], []
    for operation in options.operations:
        summary = summarize_operation(operation, found[operation])
        rows += summary.rows
        missed += summary.missed
        errors += summary.errors
    asked = "at least 0.9 of plain loops, a third of Polars' speed"
    if "ray" in options.peers:
        asked += f" and {_TIMES_RAY_DATA:g} times Ray Data's"
    verdict = f"missed by {'; '.join(missed)}" if missed else "met"
    print_table(_HEADS, rows, ("operation", "system"), _NOTE, f"{asked}: {verdict}", *errors)
    write_json(options, {"machine": machine, "size_bytes": options.size_bytes, "operations": found})
    return int(bool(missed or [text for text in errors if not text.endswith("is not installed")]))


def _takes_part(name: str, operation: str) -> bool:
    return name not in ("plain", "polars") or OPERATIONS[operation].reference == name


def _measure(
    operations: Sequence[str], names: Sequence[str], paths: Sequence[str], options: argparse.Namespace
) -> tuple[dict[str, dict[str, list[dict[str, Any]]]], list[str]]:
    line = ProgressLine()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {operation: {} for operation in operations}
    needed = [name for name in names if any(_takes_part(name, operation) for operation in operations)]
    with start_systems("bench.operations.systems", needed, options.folder, list(paths)) as processes:
        errors = [f"{process.name}: {process.error}" for process in processes if process.error]
        running = [process for process in processes if not process.error]
        for operation in operations:
            taking_part = [process for process in running if _takes_part(process.name, operation)]
            for number in range(options.rounds + 1):
                line.start(f"{operation}, round {number}" if number else f"{operation}, first")
                for process in taking_part:
                    measured = process.run(operation)
                    # the first one starts threads and workers, and imports modules
                    if number or "error" in measured:
                        found[operation].setdefault(process.name, []).append(measured)
                line.finish("")
    return found, errors


@dataclass(frozen=True)
class _Summary:
    rows: list[tuple[str, ...]]
    missed: list[str]
    errors: list[str]


def summarize_operation(name: str, found: Measurements) -> _Summary:
    """The rows of one operation in the table, what it misses, and what is wrong."""
    operation, summary = OPERATIONS[name], _Summary([], [], [])
    good: dict[str, Sequence[Mapping[str, Any]]] = {}
    for system, measured in found.items():
        failed = [each["error"] for each in measured if "error" in each]
        if failed:
            summary.errors.append(f"{name}, {system}: {failed[0]}")
        else:
            good[system] = measured
    summary.errors.extend(_compare_totals(name, operation, good))
    rates = {
        system: statistics.median(each["rows"] / each["seconds"] for each in measured)
        for system, measured in good.items()
    }
    costs = {
        system: statistics.median(each["cpu_seconds"] / each["rows"] for each in measured)
        for system, measured in good.items()
        if system not in _ELSEWHERE
    }
    for system, measured in good.items():
        share = _divide(rates[system], rates.get(operation.reference))
        by_cpu = _divide(costs.get(operation.reference), costs.get(system))
        windrow = system.startswith("windrow")
        times = _divide(rates[system], rates.get("ray")) if windrow else None
        seconds = statistics.median(each["seconds"] for each in measured)
        cells = write_cell(share, "{:.2f}"), write_cell(by_cpu, "{:.2f}"), write_cell(times, "{:.1f}")
        summary.rows.append((operation.title, _TITLES.get(system, system), f"{seconds:.3f}", *cells))
        if share is not None and system in operation.judged and share < operation.least:
            summary.missed.append(f"{name} on {system} ({share:.2f} of {_TITLES[operation.reference]})")
        if times is not None and operation.beside_ray and times < _TIMES_RAY_DATA:
            summary.missed.append(f"{name} on {system} ({times:.1f} times Ray Data)")
    return summary


def _divide(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by


def _compare_totals(name: str, operation: Operation, found: Measurements) -> list[str]:
    """Every system has to give the same rows; the model alone reads one batch only, so its total is NaN."""
    totals = [
        (system, each["rows"] if name != "inference" else None, each["total"])
        for system, measured in found.items()
        for each in measured
        if not math.isnan(each["total"])
    ]
    for system, rows, total in totals[1:]:
        first, first_rows, first_total = totals[0]
        if rows != first_rows or not math.isclose(
            total, first_total, rel_tol=operation.tolerance, abs_tol=1e-6
        ):
            return [
                f"{name}: {system} gives {rows} rows, {total}, but {first} {first_rows} rows, {first_total}"
            ]
    return []
