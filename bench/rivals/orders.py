"""The shuffle that each system claims, and the order that was measured."""

from __future__ import annotations

from collections.abc import Mapping

from bench.peers import PEERS
from bench.summary import Summary
from bench.table import align_table, write_cell

__all__ = ["describe_shuffle", "draw_orders", "shuffles_as_well"]

_HEADS = ("system", "shuffle", "exactly once", "row groups a batch", "neighbours adjacent_percent %", "order")
_NOTE = (
    "row groups a batch: mean number of row groups in a batch, and that of a uniform order; "
    "neighbours adjacent_percent: rows delivered next to one of their neighbours in storage"
)


_AS_WELL = 0.95


def draw_orders(summaries: Mapping[str, Summary], window: str | None) -> str:
    """One line per system that delivers rows, with the worst of its steady epochs."""
    lines = [_write_line(name, one, window) for name, one in summaries.items() if PEERS[name].delivers]
    return "\n".join([align_table(_HEADS, lines, {"system", "shuffle", "exactly once"}), _NOTE])


def shuffles_as_well(one: Summary, other: Summary) -> bool:
    """Whether the first order is as random as the second, but for a twentieth, by every measure of it.

    Those are the distance in storage of rows delivered next to each other, the row groups in a batch compared with
    a uniform order, and the rows that stay beside a neighbour. An order that was not measured is not as random.
    """
    measured, wanted = _measure_order(one), _measure_order(other)
    if measured is None or wanted is None:
        return False
    return all(mine >= _AS_WELL * theirs for mine, theirs in zip(measured, wanted, strict=True))


def _measure_order(one: Summary) -> tuple[float, float, float] | None:
    if one.neighbour_distance is None or one.neighbours_kept is None:
        return None
    if one.groups_a_batch is None or not one.groups_expected:
        return None
    return one.neighbour_distance, one.groups_a_batch / one.groups_expected, 1 - one.neighbours_kept


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
