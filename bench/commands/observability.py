"""``python -m bench observability``: what measuring a run costs, with and without ``options(profile=)`` in turns."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.data.shapes import SHAPES
from bench.shapes.command import STORE_BYTES, add_measured, request_shape
from bench.shapes.systems import EXECUTORS
from bench.system.console import ProgressLine, add_names, print_table, read_count, write_json
from bench.system.machine import print_machine
from bench.system.processes import SystemProcess, start_systems

_MAX_COST = 0.01
_RESAMPLES = 1_000
_HEADS = ("shape", "executor", "off CPU s", "on CPU s", "cost", "error", "off s", "on s", "cost", "error")
_NOTE = (
    "A pair is some epochs with profile=True and as many with profile=False, in turns in one process, each after two "
    "epochs that do not count. cost: on over off, the mean of the middle half of all pairs, by CPU and by the clock; "
    "error: its standard error. On Ray, CPU seconds are those of all its processes."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_measured(parser, shapes=["plain", "tokens", "text"])
    add_names(parser, "--executor", EXECUTORS, default=["threads"], help="where epochs run")
    parser.add_argument("--pairs", type=read_count, default=80, help="pairs of each shape, at least 2")
    parser.add_argument("--epochs", type=read_count, default=12, help="epochs in each half")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 1 if a cost by CPU is above 1 % by more than its error."""
    if options.pairs < 2:
        raise ValueError("--pairs: 2 or more")
    machine = print_machine()
    rows, found, is_met = [], {}, True
    for executor in options.executor:
        with start_systems("bench.shapes.systems", [executor], options.folder, STORE_BYTES) as (process,):
            for name in options.shapes:
                on, off = _measure_pairs(name, request_shape(name, options), process, options.pairs)
                found[f"{name} {process.name}"] = {"on": on, "off": off}
                cells: list[str] = []
                for what in ("cpu_seconds", "seconds"):
                    with_it, without = ([each[what] for each in some] for some in (on, off))
                    cost, error = compare_pairs(with_it, without)
                    is_met = is_met and (what == "seconds" or cost - error <= _MAX_COST)
                    means = (f"{statistics.mean(each):.4f}" for each in (without, with_it))
                    cells += [*means, f"{cost:+.2%}", f"{error:.2%}"]
                rows.append((SHAPES[name].title, process.name, *cells))
    print_table(_HEADS, rows, ("shape", "executor"), _NOTE)
    write_json(options, {"machine": machine, "pairs": found})
    return int(not is_met)


def _measure_pairs(
    name: str, request: dict[str, Any], process: SystemProcess, pairs: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """The seconds of an epoch with and without measuring, pair by pair."""
    line = ProgressLine()
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(pairs):
        line.start(f"{name}, pair {number + 1} of {pairs}")
        # what drifts meets both alike
        for profile in (True, False) if number % 2 else (False, True):
            answer = process.run({**request, "profile": profile})
            if "error" in answer:
                raise ValueError(f"{name} on {process.name}: {answer['error']}")
            found[profile].append(answer)
        line.finish("")
    return found[True], found[False]


def compare_pairs(on: Sequence[float], off: Sequence[float]) -> tuple[float, float]:
    """The relative difference of pairs, as the mean of their middle half, and its standard error by bootstrap."""
    from scipy import stats

    ratios = np.divide(on, off) - 1
    # what else the machine does meets single pairs
    draws = np.random.default_rng(7).choice(ratios, (_RESAMPLES, len(ratios)))
    means = stats.trim_mean(draws, 0.25, axis=1)
    return float(stats.trim_mean(ratios, 0.25)), float(means.std(ddof=1))
