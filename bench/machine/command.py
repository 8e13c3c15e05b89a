"""``python -m bench machine``: ``cores`` and, with a GPU, ``gpu``, in eight minutes at most; a file and a picture."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.cores import command as cores
from bench.cores.plot import draw, require_matplotlib
from bench.gpu.command import find_gpu
from bench.system.console import write_json

# what has begun may end later, so the last part of the eight minutes is kept free
_SECONDS, _GPU_SECONDS, _LAST_SECONDS = 480.0, 240.0, 60.0


def add_options(parser: argparse.ArgumentParser) -> None:
    cores.add_options(parser)
    parser.set_defaults(seconds=4.0, json=Path("machine.json"), plot=Path("machine.png"))


def run(options: argparse.Namespace) -> int:
    """Measure, and write both files; the exit status is 0 if nothing failed."""
    began = time.monotonic()
    require_matplotlib()
    gpu = _measure_gpu(options)
    print(gpu.get("skipped") or gpu.get("error") or "gpu: measured", flush=True)
    found = {"gpu": gpu, **cores.measure_cores(options, began + _SECONDS - _LAST_SECONDS)}
    write_json(options, found)
    draw(options.plot, found, gpu.get("loaders", ()))
    print(f"{time.monotonic() - began:.0f} s; results: {options.json}, picture: {options.plot}")
    return int("error" in gpu or any("error" in each for each in found["results"]))


def _measure_gpu(options: argparse.Namespace) -> dict[str, Any]:
    """What ``gpu`` wrote, or why it was skipped or failed; in a process of its own, which can be ended."""
    if find_gpu() is None:
        return {"skipped": "gpu: skipped, since torch finds no CUDA device on this machine"}
    with TemporaryDirectory() as folder:
        written = Path(folder) / "gpu.json"
        command = [sys.executable, "-m", "bench", "gpu", "--size", "1GB", "--json", str(written)]
        try:
            subprocess.run(command, check=False, timeout=_GPU_SECONDS)
        except subprocess.TimeoutExpired:
            return {"error": f"gpu: not done within {_GPU_SECONDS:g} s"}
        if not written.exists():
            return {"error": "gpu: it ended without results"}
        found: dict[str, Any] = json.loads(written.read_text())
        return found
