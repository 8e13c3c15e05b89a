"""``python -m bench cores``: speed and the GIL's share on 1, 2, 4 … all cores, threads and Ray, beside a scan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from bench.data.shapes import SHAPES
from bench.shapes.command import add_measured, request_shape
from bench.shapes.systems import EXECUTORS, TRAINER_COMMAND
from bench.system.console import ProgressLine, add_names, print_table, read_count, write_cell, write_json
from bench.system.gil import GilSampler
from bench.system.machine import count_cores, print_machine
from bench.system.processes import list_tree, read_command, start_systems

_STORE_BYTES = 4 * 10**9
_TURNS = 2
_SYSTEMS = ("scan", *EXECUTORS)
_HEADS = ("shape", "cores", "system", "rows/s", "of the scan", "of one core", "CPU s", "GIL")
_NOTE = (
    "Shuffled epochs to Arrow on threads and on Ray, and Arrow's scanner, each pinned to as many cores as it has "
    "threads; medians of turns. of the scan: its seconds over those of the system; of one core: speed over that of the "
    "system on one core. GIL: share of the time in which a thread of the trainer's process holds it."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_measured(parser, shapes=["plain"])
    parser.set_defaults(size_bytes="1GB")
    add_names(parser, "--systems", _SYSTEMS, help="what is measured")
    parser.add_argument(
        "--max-cores", type=read_count, default=count_cores(), help="the largest number of cores"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of measured epochs of each")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if nothing failed."""
    if options.max_cores > count_cores() or options.seconds <= 0:
        raise ValueError(f"--max-cores: 1 to {count_cores()}, those of this process; --seconds: more than 0")
    machine, results = print_machine(), []
    options.epochs = 1
    for shape in options.shapes:
        request = request_shape(shape, options)
        for cores in choose_counts(options.max_cores):
            results += _measure_systems(shape, cores, request, options)
    errors = [
        f"{each['shape']}, cores: {each['cores']}, {each['system']}: {each['error']}"
        for each in results
        if "error" in each
    ]
    print_table(_HEADS, list(map(_write_row, _compare(results))), ("shape", "system"), _NOTE, *errors)
    write_json(options, {"machine": machine, "size_bytes": options.size_bytes, "results": results})
    return int(bool(errors))


def choose_counts(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power < most] + [most]


def _measure_systems(
    shape: str, cores: int, request: dict[str, Any], options: argparse.Namespace
) -> list[dict[str, Any]]:
    line = ProgressLine()
    line.start(f"{shape}, {cores} {'core' if cores == 1 else 'cores'}")
    names = options.systems
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    started = start_systems("bench.shapes.systems", names, options.folder, _STORE_BYTES, cores)
    with started as processes, ExitStack() as stack:
        samplers = [GilSampler(partial(_find_trainer, process.name, process.id)) for process in processes]
        for sampler in samplers:
            stack.callback(sampler.stop)
        # the first turn shows how many epochs fit, and does not count
        epochs = dict.fromkeys(names, 1)
        for _ in range(1 + _TURNS):
            for process, sampler in zip(processes, samplers, strict=True):
                count = epochs[process.name]
                answer = process.run({**request, "epochs": count})
                if "error" not in answer:
                    began, seconds = answer["began"], answer["seconds"]
                    answer["gil"] = sampler.share(began, began + count * seconds)
                    epochs[process.name] = max(1, round(options.seconds / _TURNS / seconds))
                found[process.name].append(answer)
    line.finish("")
    return [
        {"shape": shape, "cores": cores, "system": name, **_take_medians(answers)}
        for name, answers in found.items()
    ]


def _find_trainer(name: str, root: int) -> int | None:
    if name != "ray":
        return root
    return next((process for process in list_tree(root) if TRAINER_COMMAND in read_command(process)), None)


def _take_medians(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors = [each["error"] for each in answers if "error" in each]
    if errors:
        return {"error": errors[0]}
    found: dict[str, Any] = {"rows": answers[0]["rows"], "turns": list(answers[1:])}
    for what in ("seconds", "cpu_seconds", "gil"):
        values = [each[what] for each in answers[1:] if each[what] is not None]
        found[what] = median(values) if values else None
    return found


def _compare(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = [each for each in results if "error" not in each]
    seconds = {(each["shape"], each["cores"], each["system"]): each["seconds"] for each in measured}
    for each in measured:
        shape, cores, system = each["shape"], each["cores"], each["system"]
        for ratio, other in (("of_scan", (shape, cores, "scan")), ("of_one_core", (shape, 1, system))):
            each[ratio] = seconds[other] / each["seconds"] if other in seconds else None
    return measured


def _write_row(found: dict[str, Any]) -> tuple[str, ...]:
    ratios = [write_cell(found[what], "{:.2f}") for what in ("of_scan", "of_one_core")]
    speed = f"{found['rows'] / found['seconds']:,.0f}"
    gil = write_cell(found["gil"], "{:.1%}")
    title = SHAPES[found["shape"]].title
    return title, str(found["cores"]), found["system"], speed, *ratios, f"{found['cpu_seconds']:.3f}", gil
