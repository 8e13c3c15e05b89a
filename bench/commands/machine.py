"""``python -m bench machine``: what this machine gives: ``cores`` and, with a GPU, ``gpu``; a file and a picture."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.system.console import add_json, write_json

# eight minutes in all; each part runs in a process of its own, which is ended then
_SECONDS = {"gpu": 180.0, "cores": 300.0}
_TITLES = ("rows per second", "GIL held, % of the time")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", type=Path, default=Path("machine.png"), help="picture, with the extra plot")
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help="options of `cores`, last")
    add_json(parser)
    parser.set_defaults(json=Path("machine.json"))


def run(options: argparse.Namespace) -> int:
    """Measure, and write both files; the exit status is 0 if nothing failed."""
    try:
        import matplotlib  # noqa: F401 - before anything is measured
    except ImportError as error:
        raise ValueError("a picture needs matplotlib: pip install 'windrow[plot]'") from error
    found = {
        "gpu": measure_part("gpu", "--size", "1GB"),
        "cores": measure_part("cores", "--seconds", "4", *options.arguments),
    }
    write_json(options, found)
    draw(options.plot, found["cores"].get("results", ()), found["gpu"].get("loaders", ()))
    print(f"results: {options.json}, picture: {options.plot}")
    results = found["cores"].get("results", ())
    return int(any("error" in each for each in [*found.values(), *results]))


def measure_part(command: str, *arguments: str) -> dict[str, Any]:
    """What a command wrote, or why it failed; without a GPU, ``gpu`` says so and writes nothing."""
    with TemporaryDirectory() as folder:
        written = Path(folder) / "found.json"
        line = [sys.executable, "-m", "bench", command, *arguments, "--json", str(written)]
        try:
            status = subprocess.run(line, check=False, timeout=_SECONDS[command]).returncode
        except subprocess.TimeoutExpired:
            return {"error": f"{command}: not done within {_SECONDS[command]:g} s"}
        if written.exists():
            found: dict[str, Any] = json.loads(written.read_text())
            return found
        return {"error": f"{command}: ended with status {status}"} if status else {}


def draw(path: Path, cores: Sequence[Mapping[str, Any]], loaders: Sequence[Mapping[str, Any]]) -> None:
    """Draw speed and the GIL's share by cores, and of loaders, the share of PCIe and how long the GPU waits."""
    from matplotlib.figure import Figure

    count = 3 if loaders else 2
    figure = Figure(figsize=(5 * count, 4), layout="constrained")
    panels = figure.subplots(1, count)
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for each in cores:
        if "error" not in each:
            lines.setdefault(f"{each['shape']}, {each['system']}", []).append(each)
    for name, points in lines.items():
        numbers = [each["cores"] for each in points]
        panels[0].plot(numbers, [each["rows"] / each["seconds"] for each in points], "o-", label=name)
        # None: not measured
        panels[1].plot(numbers, [100 * (each["gil"] or 0) for each in points], "o-", label=name)
    for panel, title in zip(panels, _TITLES, strict=False):
        panel.set(title=title, xlabel="cores", ylim=(0, None))
    for at, what in enumerate(("pcie_share", "gpu_waits") if loaders else ()):
        places = [number + 0.4 * at for number in range(len(loaders))]
        panels[-1].bar(places, [100 * each[what] for each in loaders], 0.4, label=what.replace("_", " "))
        panels[-1].set(title=f"{loaders[0]['gpu']}, %")
        panels[-1].set_xticks(range(len(loaders)), [each["loader"] for each in loaders])
    for panel in panels:
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    figure.savefig(path, dpi=120)
