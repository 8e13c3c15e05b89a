"""The plot of ``shapes``: the share of the scan's speed, by CPU time, that each shape reaches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_INK = "#2b2b2b"
_BAR = "#86b3de"


def draw_shares(rows: Sequence[Sequence[str]], path: Path) -> None:
    """Draw one bar a judged row of the table, and a mark at what is asked."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    judged = [(row[0], float(row[6]), float(row[7])) for row in rows if row[7] and row[6] != "-"]
    plt.rcParams.update(
        {"font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "svg.hashsalt": "shapes"}
    )
    figure, axes = plt.subplots(figsize=(8, 1.4 + 0.42 * len(judged)))
    places = range(len(judged))
    axes.barh(places, [share for _, share, _ in judged], height=0.6, color=_BAR, label="reached")
    asked = [least for _, _, least in judged]
    axes.plot(
        asked,
        places,
        linestyle="none",
        marker="|",
        markersize=16,
        markeredgewidth=2,
        color=_INK,
        label="asked",
    )
    for place, (_, share, least) in enumerate(judged):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(max(share, least) + 0.05, place, f"{share:.2f}", va="center", fontsize=9, bbox=box)
    axes.axvline(1, color="#8a8a8a", linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.set_yticks(places, [title for title, _, _ in judged])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max([1.0, *(share for _, share, _ in judged)]))
    axes.set_xlabel("CPU seconds of a raw scan / those of a shuffled epoch")
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(
        path, dpi=130, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None
    )
    plt.close(figure)
