"""Draws a timeline with matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from windrow.core.notebook_html import escape_text
from windrow.core.optional_dependencies import require
from windrow.core.terminal_text import escape_controls
from windrow.pipeline.statistics.phases import COLLATE, DECODE, DEVICE, PREPARE, SHUFFLE, STORAGE, TRANSFORM
from windrow.pipeline.timeline.lanes import CUT_GROUPS, Lane, cut_phases

_INK, _FAINT = "#2b2b2b", "#8a8a8a"
# beyond these, lanes of a group are left out and counted
_MAX_LANES = 16
# in a notebook; each takes some 150 bytes
_MAX_SVG_SPANS = 1_000
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
    PREPARE: ("#d98c6a", "", "transform after the shuffle"),
    COLLATE: ("#a9d8b8", "", "convert to batches"),
    DEVICE: ("#d6c7e8", "", "copy to the device"),
    "work": ("#f0c75e", "", "train"),
    "wait": ("#ffffff", "//////", "wait: the trainer and its GPU are idle"),
}


def draw_timeline(
    lanes: Sequence[Lane], origin: float, stop: float, title: str, target: Path | BinaryIO, kind: str
) -> None:
    """Write a picture of lanes, as ``"png"``, ``"svg"`` or ``"pdf"``, to a file."""
    require("matplotlib", "plot", f"a picture of a Timeline (.{kind})")
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
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
    # texts stay texts in SVG, which also makes it smaller
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "windrow"}):
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(target, format=kind, dpi=130, facecolor="white", metadata=metadata)


def draw_lanes(axes: Any, lanes: Sequence[Lane], origin: float) -> None:
    """Draw one row a lane, from the top, with seconds since ``origin`` across."""
    bars: dict[str, list[tuple[int, float, float]]] = {name: [] for name in _STYLES}
    for row, lane in enumerate(lanes):
        for span in lane.spans:
            phases = cut_phases(span) if lane.group in CUT_GROUPS else []
            whole = "task" if lane.group == "task" else span.kind
            for name, start, stop in phases or [(whole, span.start_time, span.stop_time)]:
                kind = whole if name not in bars or (name == SHUFFLE and lane.group == "placing") else name
                bars[kind].append((row, start - origin, stop - start))
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
    names = [escape_controls(lane.name) for lane in lanes]
    axes.set_yticks(range(len(lanes)), names, fontsize=9, parse_math=False)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(colors=_INK)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.7)


def draw_html(lanes: Sequence[Lane], origin: float, stop: float, title: str) -> str:
    """Return a picture of lanes as HTML: SVG, or, where it would be large, PNG."""
    picture = io.BytesIO()
    kind = "svg" if sum(len(lane.spans) for lane in lanes) <= _MAX_SVG_SPANS else "png"
    draw_timeline(lanes, origin, stop, title, picture, kind)
    if kind == "png":
        encoded = base64.b64encode(picture.getvalue()).decode()
        return f'<img alt="{escape_text(title)}" src="data:image/png;base64,{encoded}">'
    text = picture.getvalue().decode()
    return text[text.index("<svg") :]


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
