"""The picture of ``cores`` and ``machine``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def require_matplotlib() -> None:
    """Raise ValueError before anything is measured if no picture can be drawn."""
    try:
        import matplotlib  # noqa: F401 - only whether it is installed
    except ImportError as error:
        raise ValueError("a picture needs matplotlib: pip install 'windrow[plot]'") from error


def draw(path: Path, cores: Mapping[str, Any], loaders: Sequence[Mapping[str, Any]] = ()) -> None:
    """Draw speed and the GIL's share by cores, and of loaders, the share of PCIe and how long the GPU waits."""
    from matplotlib.figure import Figure

    count = 3 if loaders else 2
    figure = Figure(figsize=(5 * count, 4), layout="constrained")
    panels = figure.subplots(1, count)
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for each in cores["results"]:
        if "error" not in each:
            lines.setdefault(f"{each['shape']}, {each['system']}", []).append(each)
    for name, points in lines.items():
        numbers = [each["cores"] for each in points]
        panels[0].plot(numbers, [each["rows"] / each["seconds"] for each in points], "o-", label=name)
        # None: not measured
        panels[1].plot(numbers, [100 * (each["gil"] or 0) for each in points], "o-", label=name)
    for panel, title in zip(panels, ("rows per second", "GIL held, % of the time"), strict=False):
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
