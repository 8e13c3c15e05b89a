"""``python -m bench executors``: several trainers on threads and on Ray, and where Ray's core seconds go."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from bench.shapes.command import add_measured, request_shape
from bench.shapes.systems import EXECUTORS, OTHER, PARTS
from bench.system.console import ProgressLine, print_table, read_count, read_size, write_json
from bench.system.machine import print_machine
from bench.system.processes import start_systems

_CACHES, _TRAINERS = ("none", "memory"), 2
_MIN_SHARE = 0.9
_PARTS_HEAD = "CPU s of an epoch on Ray"
_NOTE = (
    "Trainers take batches of 8,192 rows as fast as they can: threads of one process, actors on Ray. Times are of an "
    "epoch after the second one, medians of the rounds, in turns. of threads: their seconds over those on Ray, cached "
    "asked 0.9. CPU seconds of an epoch are those of each process on Ray; a trainer also places rows."
)
# by shape and cache, the medians of seconds, and of CPU seconds by part
_Medians = Mapping[tuple[str, str], Mapping[str, float]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_measured(parser, shapes=["plain", "tokens"])
    parser.add_argument("--rounds", type=read_count, default=3, help="measurements of each")
    parser.add_argument("--epochs", type=read_count, default=6, help="epochs in each")
    parser.add_argument("--store", type=read_size, default="6GB", help="size of Ray's object store")


def run(options: argparse.Namespace) -> int:
    """Measure and print the tables; the exit status is 0 if cached epochs on Ray reach what is asked."""
    machine, line = print_machine(), ProgressLine()
    print(f"{options.size_bytes / 1e6:,.0f} MB decoded each, {_TRAINERS} trainers", flush=True)
    measured = []
    with start_systems("bench.shapes.systems", EXECUTORS, options.folder, options.store) as processes:
        for name in options.shapes:
            request = {**request_shape(name, options), "trainers": _TRAINERS}
            for number in range(options.rounds):
                line.start(f"{name}, round {number + 1} of {options.rounds}")
                for cache, process in product(_CACHES, processes):
                    answer = process.run({**request, "cache": None if cache == "none" else cache})
                    if "error" in answer:
                        raise ValueError(f"{name}, {cache}, {process.name}: {answer['error']}")
                    measured.append({"executor": process.name, "shape": name, "cache": cache, **answer})
                line.finish("")
    write_json(options, {"machine": machine, "size_bytes": options.size_bytes, "measured": measured})
    return int(not _print_tables({executor: _summarize(executor, measured) for executor in EXECUTORS}))


def _summarize(executor: str, measured: Sequence[Mapping[str, Any]]) -> _Medians:
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for one in measured:
        if one["executor"] == executor:
            found.setdefault((one["shape"], one["cache"]), []).append(
                {"seconds": one["seconds"], **one["parts"]}
            )
    return {
        key: {what: statistics.median(each.get(what, 0.0) for each in some) for what in set().union(*some)}
        for key, some in found.items()
    }


def _print_tables(medians: Mapping[str, _Medians]) -> bool:
    """Print the times and the CPU seconds by part; returns whether cached epochs reach what is asked."""
    threads, ray = medians["threads"], medians["ray"]
    rows, is_met = [], True
    for (name, cache), of_threads in threads.items():
        of_ray = ray[name, cache]
        share = of_threads["seconds"] / of_ray["seconds"]
        is_met = is_met and (cache == "none" or share >= _MIN_SHARE)
        seconds = f"{of_threads['seconds']:.3f}", f"{of_ray['seconds']:.3f}"
        rows.append((name, cache, *seconds, f"{share:.2f}", "" if cache == "none" else f"{_MIN_SHARE:.2f}"))
    print_table(("shape", "cache", "threads s", "Ray s", "of threads", "asked"), rows, ("shape", "cache"))
    parts = [
        (part, *(f"{each.get(part, 0.0):.3f}" for each in ray.values()))
        for part in (*dict.fromkeys(PARTS.values()), OTHER)
    ]
    for title, some in (("all", ray), ("all, on threads", threads)):
        parts.append((title, *(f"{sum(each.values()) - each['seconds']:.3f}" for each in some.values())))
    heads = _PARTS_HEAD, *(f"{name}, cache {cache}" for name, cache in ray)
    print_table(heads, parts, (_PARTS_HEAD,), _NOTE)
    return is_met
