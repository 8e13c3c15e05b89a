"""``python -m bench chaos``: kills processes of every kind and compares the delivered rows."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from bench.chaos.kill_plan import KINDS
from bench.chaos.report import draw_report
from bench.chaos.run import run_chaos
from bench.chaos.setting import Setting
from bench.machine import describe_machine
from bench.progress import ProgressLine
from bench.sizes import read_size

__all__ = ["add_chaos", "run_command"]

_KILL_EVERY_SECONDS = 5.0
_BASELINE_SECONDS = 20.0


def add_chaos(parser: argparse.ArgumentParser) -> None:
    """Options of ``chaos``."""
    parser.add_argument(
        "--minutes", type=float, default=2.0, help="duration of the phase with kills (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill plan (default: %(default)s)")
    parser.add_argument("--kills", type=int, help="number of kills (default: one per 5 s)")
    parser.add_argument("--trainers", type=int, default=3, help="number of trainers (default: %(default)s)")
    parser.add_argument(
        "--cpus", type=int, default=Setting.cpus, help="logical CPUs of each raylet (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        choices=KINDS,
        action="append",
        metavar="KIND",
        help=f"inject only this kind of fault: {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--lead",
        type=int,
        default=Setting.lead,
        help="maximum lead of a trainer over the others, in steps (%(default)s)",
    )
    parser.add_argument(
        "--counted", action="store_true", help="filter rows, so that row counts are not known in advance"
    )
    parser.add_argument(
        "--store",
        default="120MiB",
        help="object store of each raylet; Ray spills if windows need more (%(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the full report as JSON")


def run_command(options: argparse.Namespace) -> int:
    """Run; the exit status is 0 if the delivered rows did not differ."""
    seconds = 60 * options.minutes
    kills = options.kills if options.kills is not None else round(seconds / _KILL_EVERY_SECONDS)
    if seconds <= 0 or kills < 1:
        raise ValueError("--minutes and --kills must be more than 0")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    setting = replace(
        Setting(),
        trainers=options.trainers,
        lead=options.lead,
        cpus=options.cpus,
        counted=options.counted,
        store_bytes=read_size(options.store, "--store"),
    )
    line = ProgressLine(sys.stderr)
    line.start(f"{kills} kills in {options.minutes:g} minutes, seed {options.seed}")
    report = run_chaos(
        setting,
        seed=options.seed,
        kills=kills,
        kinds=options.only or KINDS,
        seconds=seconds,
        baseline_seconds=min(_BASELINE_SECONDS, seconds / 4),
        report_progress=line.update,
    )
    line.finish("same rows in the same order" if report.passed else "FAILED")
    print(draw_report(report))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**report.to_dict(), "machine": describe_machine()}, indent=1))
    return int(not report.passed)
