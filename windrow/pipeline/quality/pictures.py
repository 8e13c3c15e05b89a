"""Pictures: of shuffle reports, beside the full shuffle, and of what the most expensive shard costs in each step."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.pipeline.quality.measures import OrderMeasures
from windrow.pipeline.quality.step_costs import StepCosts

_MAX_REPORTS = 6
_PERCENT = list(range(0, 101, 5))
_INK, _FULL = "#222222", "#b5b5b5"
# told apart without colours too: by line and marker, and from dark to light
_STYLES = (
    ("#0b3c5d", "-", "o"),
    ("#b3460f", "--", "s"),
    ("#2e7d4f", "-.", "^"),
    ("#8a4f9e", (0, (1, 1)), "D"),
    ("#c58f00", (0, (5, 1, 1, 1)), "v"),
    ("#4c9bd0", (0, (3, 3)), "x"),
)
# between these, values are shown on a logarithmic axis
_LOG_SPAN = 20
_FULL_LABEL = "full shuffle"
# told apart without colours too: by line, and from light to dark
_STEP_STYLES = (("#b3460f", ":"), ("#4c9bd0", "--"), ("#0b3c5d", "-"))
# more do not fit into the width
_MAX_STEPS = 120


def plot_reports(reports: Sequence[OrderMeasures], path: str | os.PathLike[str]) -> None:
    """Draw reports on the same rows into one picture; see `ShuffleReport.plot`."""
    _check_alike(reports)
    figure = require("matplotlib.figure", "plot", "ShuffleReport.plot()").Figure(
        figsize=(10.5, 6.4 + 0.2 * len(reports)), layout="constrained", facecolor="white"
    )
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)
    first, labels = reports[0], [_label(report) for report in reports]
    panels = figure.subplots(2, 2)
    figure.suptitle(_title(first), x=0.01, ha="left", fontsize=11, fontweight="bold", color=_INK)
    _draw_displacement(panels[0][0], reports, labels)
    _draw_groups(panels[0][1], reports, labels)
    _draw_recurrence(panels[1][0], reports, labels)
    _draw_entropy(panels[1][1], reports, labels)
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), frameon=False)
    _save(figure, path, f"plot({str(path)!r})")


def _save(figure: Any, path: str | os.PathLike[str], call: str) -> None:
    """Write a picture in the format of its suffix; ``call`` begins the messages of errors."""
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:
        raise PlanError(f"{call}: {error}; use .png, .svg or .pdf") from error
    except OSError as error:
        raise SourceError(f"{call}: the file cannot be written: {error}") from error


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
        axes.fill_between(places, 1, unavoidable, step="mid", color=_FULL, linewidth=0, label="unavoidable")
        for (name, steps), (colour, line) in zip(ways.items(), _STEP_STYLES, strict=False):
            values = steps.imbalances[:_MAX_STEPS]
            label = f"{name}: {float(steps.imbalances.mean()):.3f}"
            axes.step(places, values, where="mid", color=colour, linestyle=line, linewidth=1.3, label=label)
        axes.set_ylabel("largest over mean")
        axes.set_xlim(-0.5, len(places) - 0.5)
        axes.set_ylim(bottom=0.98)
        _finish(axes, title, "y")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)
    drawn[-1].set_xlabel("step", fontsize=9)
    _save(figure, path, f"--plot {str(path)!r}")


def _check_alike(reports: Sequence[OrderMeasures]) -> None:
    if len(reports) > _MAX_REPORTS:
        raise PlanError(f"{len(reports)} reports do not fit into one picture: give at most {_MAX_REPORTS}")
    for report in reports[1:]:
        for name in ("rows", "groups", "group_kind", "batch_size"):
            ours, theirs = getattr(reports[0], name), getattr(report, name)
            if ours != theirs:
                raise PlanError(
                    f"reports of {name} {ours!r} and {theirs!r} cannot be compared in one picture: draw them separately"
                )


def _title(report: OrderMeasures) -> str:
    return (
        f"Shuffle quality: {report.rows:,} rows in {report.groups:,} {report.group_kind}, "
        f"batches of {report.batch_size:,}"
    )


def _label(report: OrderMeasures) -> str:
    if report.shuffle == "nothing":
        return "stored order"
    windows = "1 window" if report.windows == 1 else f"{report.windows:,} windows"
    return windows if report.shuffle == "rows" else f"{windows}, blocks only"


def _draw_displacement(axes: Any, reports: Sequence[OrderMeasures], labels: Sequence[str]) -> None:
    full = [100 * value for value in reports[0].displacement_full.quantiles]
    axes.plot(full, _PERCENT, color=_FULL, linewidth=5, solid_capstyle="butt", label=_FULL_LABEL)
    for report, label, style in zip(reports, labels, _STYLES, strict=False):
        _draw_line(axes, [100 * value for value in report.displacement.quantiles], label, style)
    axes.set_xlabel("distance from the stored place (% of the dataset)")
    axes.set_ylabel("rows (%, cumulative)")
    _finish(axes, "Displacement")


def _draw_line(axes: Any, values: Sequence[float], label: str, style: tuple[str, Any, str]) -> None:
    colour, line, marker = style
    axes.plot(
        values, _PERCENT, color=colour, linestyle=line, linewidth=1.6, marker=marker, markersize=4,
        markevery=2, label=label,
    )  # fmt: skip


def _draw_groups(axes: Any, reports: Sequence[OrderMeasures], labels: Sequence[str]) -> None:
    kind, full = reports[0].group_kind, reports[0].groups_per_batch_full
    values = [report.groups_per_batch.mean for report in reports]
    axes.axvspan(full.quantile(5), full.quantile(95), color="#e4e4e4", linewidth=0)
    for place, report in enumerate(reports):
        ends = [report.groups_per_batch.quantile(percent) for percent in (5, 95)]
        axes.plot(ends, [place, place], color=_INK, linewidth=4, alpha=0.35, solid_capstyle="butt")
    _draw_points(axes, labels, values, full.mean, [f"{value:,.4g}" for value in values])
    axes.set_xlabel(f"mean, 5 % to 95 % shaded; dashed: full shuffle, {full.mean:,.4g}")
    _finish(axes, f"{kind.capitalize()} a batch")


def _draw_recurrence(axes: Any, reports: Sequence[OrderMeasures], labels: Sequence[str]) -> None:
    known = [(label, report.recurrence) for label, report in zip(labels, reports, strict=True)]
    shown = [(label, value) for label, value in known if value is not None]
    if shown:
        names, values = zip(*shown, strict=True)
        _draw_points(axes, names, values, 1.0, [f"{value:,.3g} ×" for value in values])
    else:
        axes.set_yticks([])
        axes.text(
            0.5, 0.5, "one epoch: no rows meet again", ha="center", va="center", transform=axes.transAxes
        )
    axes.set_xlabel("times as often as by chance; dashed: full shuffle, 1")
    _finish(axes, "Pairs of rows that meet again in the next epoch")


def _draw_points(
    axes: Any, labels: Sequence[str], values: Sequence[float], full: float, texts: Sequence[str]
) -> None:
    axes.axvline(full, color=_INK, linewidth=1.2, linestyle="--", zorder=1)
    span = [full, *values]
    is_log = min(span) > 0 and max(span) > _LOG_SPAN * min(span)
    middle = math.sqrt(min(span) * max(span)) if is_log else (min(span) + max(span)) / 2
    for place, (value, text) in enumerate(zip(values, texts, strict=True)):
        axes.plot(value, place, marker="o", markersize=7, color=_INK)
        # towards the middle, so that texts do not cross the border
        side = -1 if value > middle else 1
        axes.annotate(
            text, (value, place), xytext=(8 * side, 8), textcoords="offset points", va="center",
            ha="left" if side > 0 else "right", fontsize=9, color=_INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )  # fmt: skip
    _name_places(axes, labels)
    if is_log:
        _use_log_axis(axes)
        axes.set_xlim(min(span) / 2, max(span) * 2)
    else:
        axes.set_xlim(0, 1.15 * max(span))


def _draw_entropy(axes: Any, reports: Sequence[OrderMeasures], labels: Sequence[str]) -> None:
    values, full = [report.entropy for report in reports], reports[0].entropy_full
    places = range(len(values))
    axes.barh(places, values, height=0.55, color="#d9dee3", edgecolor=_INK, linewidth=0.8)
    axes.axvline(full, color=_INK, linewidth=1.2, linestyle="--")
    for place, value in enumerate(values):
        # beyond the dashed line, which it would cross otherwise
        axes.annotate(
            f"{value:.1f}", (max(value, full), place), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize=9, color=_INK,
        )  # fmt: skip
    _name_places(axes, labels)
    axes.set_xlim(0, 1.15 * max([full, *values]))
    axes.set_xlabel(f"bits; dashed: full shuffle, {full:.1f}")
    _finish(axes, "Entropy of neighbours")


def _name_places(axes: Any, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    # a single report does not fill the panel
    axes.set_ylim(max(len(labels), 3) - 0.5 - (len(labels) < 3), -0.7 - (len(labels) < 3))


def _use_log_axis(axes: Any) -> None:
    axes.set_xscale("log")
    ticker = require("matplotlib.ticker", "plot", "ShuffleReport.plot()")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _finish(axes: Any, title: str, grid_axis: Literal["x", "y"] = "x") -> None:
    """Give a panel its title and the style of all pictures."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid_axis, color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=_INK)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(9)
