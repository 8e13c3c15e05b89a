"""``python -m bench formats``."""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from bench.formats.arrays import ARRAYS
from bench.formats.case import BATCH_ROWS, Case
from bench.formats.records import RECORDS
from bench.formats.rows import ROWS
from bench.sizes import read_size

__all__ = ["CASES", "add_formats", "run_formats"]

CASES: tuple[Case, ...] = (*ARRAYS, *ROWS, *RECORDS)
# A pass touches memory for the first time, and is left out.
_EPOCHS = 4


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    names = ",".join(case.name for case in CASES)
    parser.add_argument("--formats", default=names, help=f"which, separated by commas (default: {names})")
    parser.add_argument("--size", default="400MB", help="data of each format, decoded (default: 400MB)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    parser.add_argument("--folder", type=Path, default=Path(".bench/formats"), help="where data is made")


def run_formats(options: argparse.Namespace) -> int:
    """Measure, one format after the other, the library alone and windrow in turn."""
    known = {case.name: case for case in CASES}
    asked = options.formats.split(",")
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise ValueError(f"--formats: {unknown[0]!r} is none of {', '.join(known)}")
    size_bytes = read_size(options.size, "--size")
    print(f"{'format':<14}{'rows':>12}{'alone s':>10}{'windrow s':>11}{'ratio':>8}{'by CPU':>8}")
    for name in asked:
        folder = options.folder / f"{name}-{size_bytes}"
        _make(known[name], folder, size_bytes)
        rows = known[name].alone(folder)
        rounds = [_measure(known[name], folder, rows) for _ in range(options.rounds)]
        alone, alone_cpu, ours, ours_cpu = (statistics.median(taken) for taken in zip(*rounds, strict=True))
        print(
            f"{name:<14}{rows:>12,}{alone:>10.3f}{ours:>11.3f}{alone / ours:>8.2f}{alone_cpu / ours_cpu:>8.2f}",
            flush=True,
        )
    return 0


def _make(case: Case, folder: Path, size_bytes: int) -> None:
    """Make the data, and nothing where that was done before."""
    if folder.exists():
        return
    unfinished = folder.with_name(folder.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    case.make(unfinished, size_bytes)
    unfinished.rename(folder)


def _measure(case: Case, folder: Path, rows: int) -> tuple[float, float, float, float]:
    """Seconds of the clock and of the processor: of a pass by the library alone, and of a shuffled epoch."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    case.alone(folder)
    alone = (time.perf_counter() - begin, time.process_time() - begin_cpu)
    pipe = case.read(folder).window().repeat(_EPOCHS).random_shuffle_each_window(seed=1)
    with pipe.options(executor="threads", progress=False).iterator() as shard:
        for epoch in shard.iter_epochs():
            read = _count(epoch)
            if read != rows:
                raise ValueError(f"{case.name}: {read} rows where the library reads {rows}")
            if epoch.number == 0:
                begin, begin_cpu = time.perf_counter(), time.process_time()
        ours = (time.perf_counter() - begin, time.process_time() - begin_cpu)
    return *alone, ours[0] / (_EPOCHS - 1), ours[1] / (_EPOCHS - 1)


def _count(epoch: Any) -> int:
    batches = epoch.iter_batches(batch_size=BATCH_ROWS, batch_format="numpy")
    return sum(len(next(iter(batch.values()))) for batch in batches)
