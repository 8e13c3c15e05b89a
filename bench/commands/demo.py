"""``python -m bench demo``: two Ray trainers, and two ranks of torchrun, on about 300 MB, in a minute or two."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands.throughput import measure
from bench.throughput.options import BenchConfig


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--small", action="store_true", help="a tenth of the data, for CI")


def run(options: argparse.Namespace) -> int:
    """Two Ray trainers that train a small model, and two ranks of torchrun."""
    picture = Path(".bench/demo.png")
    status = measure(
        BenchConfig(
            size_bytes=30_000_000 if options.small else 300_000_000,
            systems=("scan", "windrow-ray", "windrow-torchrun", "windrow-ray-training"),
            epochs=3,
            trainers=2,
            batch_size=4096 if options.small else 16_384,
            equal=True,
            timeline=str(picture.resolve()),
        )
    )
    if picture.exists():
        print(f"written: {picture}, the timeline of the trainers that train")
    return status
