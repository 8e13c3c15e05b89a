"""``python -m bench formats``: windrow compared with the underlying library of each format."""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.formats.case import BATCH_ROWS, Case
from bench.formats.records import RECORDS, ROWS
from bench.formats.tables import ARRAYS, TABLES
from bench.system.console import ProgressLine, add_data, add_names, add_turns, print_table

CASES: tuple[Case, ...] = (*ARRAYS, *ROWS, *RECORDS, *TABLES)
# the first epoch pays for first-touch page faults and is excluded
_EPOCHS = 4
_WHAT = ("alone", "in order", "shuffled")
_HEADS = ("format", "rows", *(f"{what} s" for what in _WHAT), "ratio", "by CPU")
# wall-clock seconds and CPU seconds
Taken = tuple[float, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_names(parser, "--formats", [case.name for case in CASES], help="the formats")
    add_data(parser, "400MB", ".bench/formats")
    add_turns(parser, rounds=3)


def run(options: argparse.Namespace) -> int:
    """Measure each format, alternating between the library alone and windrow."""
    known = {case.name: case for case in CASES}
    line, lines = ProgressLine(), []
    for name in options.formats:
        line.start(name)
        folder = options.folder / f"{name}-{options.size_bytes}"
        try:
            _make(known[name], folder, options.size_bytes)
        except ImportError as error:
            line.finish(f"left out: {error}")
            continue
        rows = known[name].alone(folder)
        rounds = [_measure(known[name], folder, rows) for _ in range(options.rounds)]
        taken = {
            what: [statistics.median(values) for values in zip(*(each[what] for each in rounds), strict=True)]
            for what in rounds[0]
        }
        seconds = [f"{taken[what][0]:.3f}" for what in _WHAT]
        ratios = [f"{one / ours:.2f}" for one, ours in zip(taken["alone"], taken["shuffled"], strict=True)]
        lines.append((name, f"{rows:,}", *seconds, *ratios))
        line.finish(f"{ratios[0]} of the library alone")
    print_table(_HEADS, lines, ("format",))
    return 0


def _make(case: Case, folder: Path, size_bytes: int) -> None:
    # a marker next to the folder; the folder cannot be renamed into place, because Iceberg's paths are absolute
    made = folder.with_name(folder.name + ".made")
    if made.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case.make(folder.absolute(), size_bytes)
    made.touch()


def _measure(case: Case, folder: Path, rows: int) -> dict[str, Taken]:
    """Time one pass of the library alone, and epochs of windrow in stored order and shuffled."""
    stored = case.read(folder).window().repeat(_EPOCHS)
    return {
        "alone": _time(lambda: case.alone(folder)),
        "in order": _measure_epochs(case, stored, rows),
        "shuffled": _measure_epochs(case, stored.random_shuffle_each_window(seed=1), rows),
    }


def _time(work: Callable[[], object]) -> Taken:
    begin, begin_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - begin_cpu


def _measure_epochs(case: Case, pipe: Any, rows: int) -> Taken:
    def read(epochs: Iterable[Any]) -> None:
        for epoch in epochs:
            batches = epoch.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy")
            found = sum(len(next(iter(batch.values()))) for batch in batches)
            if found != rows:
                raise ValueError(f"{case.name}: {found} rows, but the library reads {rows}")

    with pipe.options(executor="threads", progress=False).iterator() as shard:
        epochs = iter(shard.iter_epochs())
        read([next(epochs)])
        seconds, cpu = _time(lambda: read(epochs))
    return seconds / (_EPOCHS - 1), cpu / (_EPOCHS - 1)
