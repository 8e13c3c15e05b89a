"""The plot: throughput relative to the limit, and a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.names import PEERS
from bench.throughput.report import Summary
from bench.training.results import SystemResult
from bench.training.run_details import Span, pack_lanes, shift_spans

_INK = "#2b2b2b"
_FAINT = "#8a8a8a"
_LIMIT = "#b9bec6"
_RIVAL = "#d9a25f"
_OURS = "#2f6fb0"
# for each kind: two shades, alternating by window, and its label
_KINDS = {
    "map": ("#2f6fb0", "#86b3de", "read and group"),
    "reduce": ("#3f8f5b", "#9bd0ae", "place rows"),
    "train": ("#e0b04c", "#e0b04c", "train"),
    "wait": ("#c8cdd3", "#c8cdd3", "wait for a batch"),
}


def draw_plot(results: Sequence[SystemResult], summaries: Sequence[Summary], path: Path) -> None:
    """Write the PNG: bars on the left, the timeline of the last windrow system on the right."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _FAINT}
    )
    shown = _choose_timeline(results)
    columns = 2 if shown is not None else 1
    lanes = len({span.lane for span in pack_lanes(shown.spans)}) if shown else 0
    height = max(3.6, 1.7 + 0.5 * len(summaries), 1.9 + 0.36 * lanes)
    figure, axes = plt.subplots(
        1, columns, figsize=(14.5 if shown else 8, height), squeeze=False, width_ratios=[1, 1.35][:columns]
    )
    worked = [result for result in results if result.error is None]
    _draw_bars(axes[0][0], worked, summaries)
    if shown is not None:
        _draw_timeline(axes[0][1], shown)
    figure.tight_layout(w_pad=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, facecolor="white")
    plt.close(figure)


def _choose_timeline(results: Sequence[SystemResult]) -> SystemResult | None:
    ours = [result for result in results if result.system.startswith("windrow") and result.spans]
    return ours[-1] if ours else None


def _draw_bars(axes: Any, results: Sequence[SystemResult], summaries: Sequence[Summary]) -> None:
    widths = [one.megabytes_per_second for one in summaries]
    places = range(len(summaries))
    axes.barh(places, widths, color=[_choose_colour(result.system) for result in results], height=0.62)
    for place, (one, result) in enumerate(zip(summaries, results, strict=True)):
        compared = one.of_scan is not None and result.system != "scan"
        share = f"   {one.of_scan:.2f} of the scan" if compared else ""
        axes.text(
            one.megabytes_per_second + max(widths) * 0.015,
            place,
            f"{one.megabytes_per_second:,.0f}{share}",
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    limit = next((w for result, w in zip(results, widths, strict=True) if result.system == "scan"), None)
    if limit is not None:
        axes.axvline(limit, color=_FAINT, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.set_yticks(places, [one.title.replace(", ", ",\n") for one in summaries])
    axes.invert_yaxis()
    axes.set_xlim(0, max(widths) * 1.38)
    axes.set_xlabel("decoded MB/s, median of the epochs after the first")
    axes.set_title("Throughput relative to the limit", loc="left", fontsize=11, fontweight="bold", pad=24)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    _clean(axes)
    axes.tick_params(axis="y", length=0)


def _choose_colour(system: str) -> str:
    if system.startswith("windrow"):
        return _OURS
    return _LIMIT if "scan" in system else _RIVAL


def _draw_timeline(axes: Any, result: SystemResult) -> None:
    origin = result.epochs[0].start
    spans = pack_lanes([span for span in shift_spans(result.spans, origin) if span.end >= 0])
    lanes = _sort_lanes(spans)
    trained = any(epoch.losses is not None for epoch in result.epochs)
    turns = {window: number % 2 for number, window in enumerate(sorted({span.window for span in spans}))}
    for kind, (dark, light, label) in _KINDS.items():
        chosen = [span for span in spans if span.kind == kind]
        for number, lane in enumerate(lanes):
            own = [span for span in chosen if span.lane == lane]
            bars = [(span.start, span.end - span.start) for span in own]
            colours = [(dark, light)[turns[span.window]] for span in own]
            axes.broken_barh(bars, (number - 0.36, 0.72), facecolors=colours, linewidth=0)
        if chosen:
            axes.barh(-5, 0, color=dark, label=label if trained or kind != "train" else "take the batch")
    _mark_epochs(axes, result, origin, len(lanes))
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -1.1)
    axes.set_xlim(0, result.epochs[-1].end - origin)
    axes.set_xlabel("seconds since the start of the run; shades alternate by window")
    title = f"Timeline: {PEERS[result.system].title}"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=24)
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, frameon=False, fontsize=9, borderpad=0.2
    )
    _clean(axes)
    axes.tick_params(axis="y", length=0)


def _mark_epochs(axes: Any, result: SystemResult, origin: float, lanes: int) -> None:
    whole = result.epochs[-1].end - origin
    for epoch in result.epochs:
        start, end = epoch.start - origin, epoch.end - origin
        if epoch.number:
            axes.axvline(start, color=_INK, linewidth=0.8, linestyle=(0, (2, 2)))
        # in a narrow epoch only its number fits
        name = f"epoch {epoch.number}" if end - start > 0.09 * whole else str(epoch.number)
        axes.text((start + end) / 2, -0.72, name, ha="center", va="center", fontsize=9)


def _sort_lanes(spans: Sequence[Span]) -> list[str]:
    """Readers first, trainers last: rows flow from top to bottom."""
    names = {span.lane for span in spans}
    order = ("read", "place", "trainer")
    return sorted(names, key=lambda name: (order.index(name.split()[0]), len(name), name))


def _clean(axes: Any) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_axisbelow(True)
