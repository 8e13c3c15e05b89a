"""Performance targets, and the order that each system claims and has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.peers.names import PEERS
from bench.system.console import align_table
from bench.throughput.report import Summary

_HEADS = ("system", "exactly once", "row groups a batch", "neighbours kept %", "order")
_NOTE = (
    "row groups a batch: mean number of row groups in a batch, and that of a uniform order; "
    "neighbours kept: rows delivered next to one of their neighbours in storage"
)
_AS_WELL = 0.95
_BOTH = ("windrow-threads", "windrow-ray")
_CACHED = ("windrow-threads-cached", "windrow-ray-cached")


def draw_orders(summaries: Mapping[str, Summary]) -> str:
    """One line per system that delivers rows, with the worst of its steady epochs."""
    lines = [_write_line(one) for name, one in summaries.items() if PEERS[name].delivers]
    return "\n".join([align_table(_HEADS, lines, {"system", "exactly once"}), _NOTE])


def shuffles_as_well(one: Summary, other: Summary) -> bool:
    """Whether the first order is as random as the second, but for a twentieth, by every measure of it.

    An order that was not measured is not as random.
    """
    if one.order is None or other.order is None:
        return False
    measured, wanted = (
        (each.neighbour_distance, each.groups_a_batch / each.groups_expected, 1 - each.neighbours_kept)
        for each in (one.order, other.order)
    )
    return all(mine >= _AS_WELL * theirs for mine, theirs in zip(measured, wanted, strict=True))


def _write_line(one: Summary) -> tuple[str, ...]:
    cells, order = ("-", "-", "-"), one.order
    if order is not None:
        groups = f"{order.groups_a_batch:.1f} of {order.groups_expected:.1f}"
        cells = groups, f"{100 * order.neighbours_kept:.2f}", f"{order.neighbour_distance:.2f}"
    return (one.title, one.exactly_once, *cells)


@dataclass(frozen=True)
class Target:
    """``factor`` times the throughput of the fastest of some rivals, which one of ``ours`` has to reach.

    Rivals whose order is worse than that of every system in ``ours`` do not count if they have to shuffle ``as_well``.
    """

    against: str
    factor: float
    rivals: tuple[str, ...]
    ours: tuple[str, ...] = _BOTH
    as_well: bool = False


class TargetResult(NamedTuple):
    text: str
    met: bool


LARGE_TARGETS = (
    Target("Ray Data random_shuffle, reading again", 3.5, ("ray-shuffle",)),
    Target("Ray Data after materialize", 2.0, ("ray-materialize",), _CACHED),
    Target("Daft shuffle", 4.0, ("daft",), ("windrow-threads",)),
    Target("Petastorm's best loader", 8.0, ("petastorm", "petastorm-memory")),
)
SMALL_TARGETS = (
    Target("Ray Data after materialize", 8.0, ("ray-materialize",), _CACHED),
    Target("every loader by row", 50.0, tuple(name for name, peer in PEERS.items() if peer.by_row)),
)
_VARIABLE = tuple(name for name, peer in PEERS.items() if peer.rival and peer.variable_too)
CONTENT_TARGETS = {
    kind: (Target(f"the best loader of {kind} that shuffles as well", 5.0, _VARIABLE, as_well=True),)
    for kind in ("tokens", "text")
}


def check_targets(targets: Sequence[Target], summaries: Mapping[str, Summary]) -> list[TargetResult]:
    """The result of each target for which a rival and a windrow system were measured."""
    return [one for target in targets if (one := _check_target(target, summaries)) is not None]


def _check_target(target: Target, summaries: Mapping[str, Summary]) -> TargetResult | None:
    ours = [summaries[name] for name in target.ours if name in summaries]
    rivals = [summaries[name] for name in target.rivals if name in summaries]
    if target.as_well:
        rivals = [rival for rival in rivals if any(shuffles_as_well(rival, one) for one in ours)]
    if not rivals or not ours:
        return None
    best = max(rivals, key=lambda one: one.megabytes_per_second)
    times = {one.title: one.megabytes_per_second / best.megabytes_per_second for one in ours}
    factors_text = "; ".join(
        f"{title} {factor:.1f} x, {'met' if factor >= target.factor else 'NOT met'}"
        for title, factor in times.items()
    )
    fastest = f" (fastest: {best.title})" if len(target.rivals) > 1 else ""
    text = f"{target.factor:g} x {target.against}{fastest}: {factors_text}"
    return TargetResult(text, max(times.values()) >= target.factor)
