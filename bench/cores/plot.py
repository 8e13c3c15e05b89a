"""The picture of ``cores`` and ``machine``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PANELS = (
    ("rows per second", lambda each: each["rows"] / each["seconds"]),
    ("GIL held, % of the time", lambda each: None if each["gil"] is None else 100 * each["gil"]),
)


def require_matplotlib() -> None:
    """Raise ValueError before anything is measured if no picture can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("a picture needs matplotlib: pip install 'windrow[plot]'") from error


def draw(path: Path, cores: Mapping[str, Any], loaders: Sequence[Mapping[str, Any]] = ()) -> None:
    """Draw speed and the GIL's share by cores, and what share of PCIe loaders reach and how long the GPU waits."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    count = len(_PANELS) + bool(loaders)
    figure, panels = plt.subplots(1, count, figsize=(5 * count, 4), layout="constrained")
    measured = [each for each in cores["results"] if "error" not in each]
    lines = dict.fromkeys((each["shape"], each["system"]) for each in measured)
    for panel, (title, value_of) in zip(panels, _PANELS, strict=False):
        for line in lines:
            points = [each for each in measured if (each["shape"], each["system"]) == line]
            values = [value_of(each) for each in points]
            if None not in values:
                panel.plot([each["cores"] for each in points], values, "o-", label=", ".join(line))
        panel.set(title=title, xlabel="cores", ylim=(0, None), xticks=sorted({each["cores"] for each in measured}))
    panels[0].legend()
    if loaders:
        names = [each["loader"] for each in loaders]
        for at, (label, what) in enumerate((("of PCIe", "pcie_share"), ("GPU waits", "gpu_waits"))):
            places = [number + 0.4 * at for number in range(len(names))]
            panels[-1].bar(places, [100 * each[what] for each in loaders], 0.4, label=label)
        panels[-1].set(title=f"{loaders[0]['gpu']}, %", xticks=range(len(names)), xticklabels=names)
        panels[-1].legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
