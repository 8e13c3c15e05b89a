"""What each system does to the order, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping

from bench.figures import Figures
from bench.peers import PEERS
from bench.table import align_table, write_cell

__all__ = ["draw_orders"]

_HEADS = ("system", "shuffles", "exactly once", "row groups a batch", "neighbours kept %", "order")
_NOTE = (
    "row groups a batch: the mean that one has rows of, and that of a uniform order; "
    "neighbours kept: rows that arrive next to one stored next to them"
)


def draw_orders(figures: Mapping[str, Figures], window: str | None) -> str:
    """A line for every system that delivers rows; the worst of its steady epochs."""
    lines = [_write_line(name, one, window) for name, one in figures.items() if PEERS[name].delivers]
    return "\n".join([align_table(_HEADS, lines, {"system", "shuffles", "exactly once"}), _NOTE])


def _write_line(name: str, one: Figures, window: str | None) -> tuple[str, ...]:
    kept = None if one.neighbours_kept is None else one.neighbours_kept * 100
    return (
        one.title,
        describe_shuffle(name, window),
        one.exactly_once,
        _write_groups(one),
        write_cell(kept, "{:.2f}"),
        write_cell(one.neighbour_distance, "{:.2f}"),
    )


def describe_shuffle(name: str, window: str | None) -> str:
    """What a system promises; for ours, the window that was asked for."""
    if window is not None and name.startswith("windrow"):
        return f"windows of {window}{' blocks' if window.isdigit() else ''}"
    return PEERS[name].shuffle


def _write_groups(one: Figures) -> str:
    if one.groups_a_batch is None or one.groups_expected is None:
        return "-"
    return f"{one.groups_a_batch:.1f} of {one.groups_expected:.1f}"
