"""The picture of steps: the most expensive shard's cost over the mean, by step, for each way to divide rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from windrow.core.optional_dependencies import require
from windrow.pipeline.quality.plot_report import finish_panel, save_figure
from windrow.pipeline.quality.step_costs import StepCosts

_LEAST = "#b5b5b5"
# told apart without colours too: by line, and from light to dark
_STYLES = (("#b3460f", ":"), ("#4c9bd0", "--"), ("#0b3c5d", "-"))
# more do not fit into the width
_MAX_STEPS = 120


def plot_steps(panels: Sequence[tuple[str, Mapping[str, StepCosts]]], path: str | os.PathLike[str]) -> None:
    """Draw the first steps, a panel for each title, and in it a line for each of up to three ways to divide rows.

    Raises
    ------
    PlanError
        If matplotlib is not installed, or the file's suffix is not one that it can write.
    SourceError
        If the file cannot be written.
    """
    figure = require("matplotlib.figure", "plot", "--plot").Figure(
        figsize=(10, 0.7 + 2.4 * len(panels)), layout="constrained", facecolor="white"
    )
    drawn = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, ways) in zip(drawn, panels, strict=True):
        unavoidable = next(iter(ways.values())).unavoidable[:_MAX_STEPS]
        places = np.arange(len(unavoidable))
        axes.fill_between(places, 1, unavoidable, step="mid", color=_LEAST, linewidth=0, label="unavoidable")
        for (name, steps), (colour, line) in zip(ways.items(), _STYLES, strict=False):
            values = steps.imbalances[:_MAX_STEPS]
            label = f"{name}: {float(steps.imbalances.mean()):.3f}"
            axes.step(places, values, where="mid", color=colour, linestyle=line, linewidth=1.3, label=label)
        axes.set_ylabel("largest over mean")
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_ylim(bottom=0.98)
        finish_panel(axes, title, "y")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)
    drawn[-1].set_xlabel("step", fontsize=9)
    save_figure(figure, path, f"--plot {str(path)!r}")
