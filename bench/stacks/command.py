"""``python -m bench stacks``: how long a trainer of each framework waits, with steps as long as the engine needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.stacks.trainers import STACKS
from bench.system.console import ProgressLine, align_table, choose_names, read_size
from bench.system.processes import SystemProcess, make_torchrun
from bench.throughput.options import BenchConfig
from bench.throughput.report import open_data

_MOST_WAITED = 0.03
_TIMEOUT_SECONDS = 300.0
_HEADS = ("framework", "step ms", "waited %", "between steps %")
_NOTE = (
    "step ms: what the engine needs for a batch; each step sleeps as long. waited: for windrow, of the time after four "
    "epochs. between steps: all that is not a step, so also what the framework itself does."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stacks", default=",".join(STACKS), help="the frameworks")
    parser.add_argument("--size", default="700MB", help="decoded size of the data")
    parser.add_argument("--batch-size", type=int, default=65_536, help="rows of a batch")
    parser.add_argument("--epochs", type=int, default=10, help="epochs, at least 5")
    parser.add_argument("--folder", type=Path, default=Path(".bench"), help="folder of generated data")


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 0 if every trainer waits little and gets every row once."""
    names = choose_names("--stacks", options.stacks, tuple(STACKS))
    if options.epochs < 5:
        raise ValueError("--epochs: 5 or more")
    line = ProgressLine(sys.stderr)
    config = BenchConfig(size_bytes=read_size(options.size, "--size"), folder=options.folder)
    facts = open_data(config, line)
    rows, missed, breaches = [], [], []
    for name in names:
        line.start(name)
        found = _run(name, list(facts.paths), config, options)
        if "error" in found:
            breaches.append(f"{name}: {found['error']}")
            line.finish("failed")
            continue
        line.finish(f"{found['waited']:.1%} waited")
        if (
            any(rows_of_epoch != facts.rows for _, rows_of_epoch in found["sums"])
            or len({total for total, _ in found["sums"]}) != 1
        ):
            breaches.append(f"{name}: not every row came once in each epoch: {found['sums']}")
        if found["waited"] > _MOST_WAITED:
            missed.append(name)
        values = (1e3 * found["step_seconds"], 100 * found["waited"], 100 * found["between"])
        rows.append((name, *(f"{value:.1f}" for value in values)))
    print(align_table(_HEADS, rows, ("framework",)), _NOTE, sep="\n")
    print(f"waits of at most {_MOST_WAITED:.0%}: {'missed by ' + ', '.join(missed) if missed else 'met'}")
    print(*breaches, sep="\n", end="\n" if breaches else "")
    return int(bool(missed or breaches))


def _run(name: str, paths: Sequence[str], config: BenchConfig, options: argparse.Namespace) -> dict[str, Any]:
    module, log = "bench.system.processes", options.folder / "logs" / f"stack-{name}.log"
    command = make_torchrun(1, module) if name == "torchrun" else [sys.executable, "-m", module]
    arguments = (paths, options.batch_size, options.epochs, config.window)
    with SystemProcess(
        "bench.stacks.trainers", log=log, timeout_seconds=_TIMEOUT_SECONDS, command=command
    ) as process:
        return process.run((name, arguments))
