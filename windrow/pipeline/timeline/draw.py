"""Draws a timeline with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windrow.core.optional_dependencies import require
from windrow.pipeline.statistics.phases import COLLATE, DECODE, DEVICE, SHUFFLE, STORAGE, TRANSFORM
from windrow.pipeline.timeline.lanes import Lane, cut_phases

_INK, _FAINT = "#2b2b2b", "#8a8a8a"
# beyond these, lanes of a group are left out and counted
_MAX_LANES = 16
# by kind or phase: colour, hatch, and name; the lightness differs, so that prints without colour can be read
_STYLES: dict[str, tuple[str, str, str]] = {
    "window": ("#dfe5ec", "", "window, from its first task until it is consumed"),
    "source": ("#f3e3d0", "", "window of a source, while it is prepared"),
    STORAGE: ("#08306b", "", "read from storage"),
    DECODE: ("#2f6fb0", "", "decode"),
    TRANSFORM: ("#7fb2dd", "", "transform"),
    SHUFFLE: ("#c9def0", "", "group rows"),
    "task": ("#2f6fb0", "", "task"),
    "transfer": ("#6b4f8f", "", "transfer"),
    "reduce": ("#3f8f5b", "", "place rows"),
    COLLATE: ("#a9d8b8", "", "convert to batches"),
    DEVICE: ("#d6c7e8", "", "copy to the device"),
    "work": ("#f0c75e", "", "train"),
    "wait": ("#ffffff", "//////", "wait: the trainer and its GPU are idle"),
}


def draw_timeline(lanes: Sequence[Lane], origin: float, stop: float, title: str, path: Path) -> None:
    """Write a picture of lanes; the format is that of the path's suffix."""
    require("matplotlib", "plot", f"Timeline.save({path.name!r})")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown, left_out = _choose(lanes)
    figure = Figure(figsize=(14, max(3.2, 1.9 + 0.33 * len(shown))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw_lanes(axes, shown, origin)
    axes.set_xlim(0, max(stop - origin, 1e-3))
    note = f"; not shown: {', '.join(left_out)}" if left_out else ""
    axes.set_xlabel(f"seconds since the start of the run{note}")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=9, labelcolor=_INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    # texts stay texts in SVG, which also makes it smaller
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "windrow"}):
        figure.savefig(
            path, dpi=130, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None
        )


def draw_lanes(axes: Any, lanes: Sequence[Lane], origin: float) -> None:
    """Draw one row a lane, from the top, with seconds since ``origin`` across."""
    bars: dict[str, list[tuple[int, float, float]]] = {name: [] for name in _STYLES}
    for row, lane in enumerate(lanes):
        for span in lane.spans:
            phases = cut_phases(span) if lane.group == "task" else []
            for name, start, stop in phases or [
                ("task" if lane.group == "task" else span.kind, span.start_time, span.stop_time)
            ]:
                bars[name if name in bars else "task"].append((row, start - origin, stop - start))
    for name, found in bars.items():
        colour, hatch, label = _STYLES[name]
        outline = (
            {"edgecolor": _INK, "linewidth": 0.5}
            if name in ("source", "window", "wait")
            else {"linewidth": 0}
        )
        for number, row in enumerate(dict.fromkeys(row for row, _, _ in found)):
            own = [(start, length) for at, start, length in found if at == row]
            style = {"facecolor": colour, "hatch": hatch, **outline, "label": "" if number else label}
            axes.broken_barh(own, (row - 0.38, 0.76), **style)
    for row, lane in enumerate(lanes):
        if lane.group in ("source", "window"):
            _name_windows(axes, row, lane, origin)
    axes.set_yticks(range(len(lanes)), [lane.name for lane in lanes], fontsize=9)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(colors=_INK)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.7)


def _name_windows(axes: Any, row: int, lane: Lane, origin: float) -> None:
    """Write epoch and window into the bars that have space for it."""
    whole = max(span.stop_time for span in lane.spans) - origin
    for span in lane.spans:
        if span.stop_time - span.start_time > 0.045 * whole:
            middle = (span.start_time + span.stop_time) / 2 - origin
            text = f"{span.epoch}:{span.window}"
            axes.text(middle, row, text, ha="center", va="center", fontsize=8, color=_INK, clip_on=True)


def _choose(lanes: Sequence[Lane]) -> tuple[list[Lane], list[str]]:
    shown: list[Lane] = []
    left_out: list[str] = []
    for group in dict.fromkeys(lane.group for lane in lanes):
        own = [lane for lane in lanes if lane.group == group]
        shown += own[:_MAX_LANES]
        if len(own) > _MAX_LANES:
            left_out.append(f"{len(own) - _MAX_LANES} more lanes of {group}")
    return shown, left_out
