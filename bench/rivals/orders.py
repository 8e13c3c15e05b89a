"""The shuffle that each system claims, and the order that was measured."""

from __future__ import annotations

from collections.abc import Mapping

from bench.peers import PEERS
from bench.summary import Summary
from bench.table import align_table, write_cell

__all__ = ["draw_orders"]

_HEADS = ("system", "shuffle", "exactly once", "row groups a batch", "neighbours adjacent_percent %", "order")
_NOTE = (
    "row groups a batch: mean number of row groups in a batch, and that of a uniform order; "
    "neighbours adjacent_percent: rows delivered next to one of their neighbours in storage"
)


def draw_orders(summaries: Mapping[str, Summary], window: str | None) -> str:
    """One line per system that delivers rows, with the worst of its steady epochs."""
    lines = [_write_line(name, one, window) for name, one in summaries.items() if PEERS[name].delivers]
    return "\n".join([align_table(_HEADS, lines, {"system", "shuffle", "exactly once"}), _NOTE])


def _write_line(name: str, one: Summary, window: str | None) -> tuple[str, ...]:
    adjacent_percent = None if one.neighbours_kept is None else one.neighbours_kept * 100
    return (
        one.title,
        describe_shuffle(name, window),
        one.exactly_once,
        _write_groups(one),
        write_cell(adjacent_percent, "{:.2f}"),
        write_cell(one.neighbour_distance, "{:.2f}"),
    )


def describe_shuffle(name: str, window: str | None) -> str:
    """The shuffle that a system claims; for windrow, the configured window."""
    if window is not None and name.startswith("windrow"):
        return f"windows of {window}{' blocks' if window.isdigit() else ''}"
    return PEERS[name].shuffle


def _write_groups(one: Summary) -> str:
    if one.groups_a_batch is None or one.groups_expected is None:
        return "-"
    return f"{one.groups_a_batch:.1f} of {one.groups_expected:.1f}"
