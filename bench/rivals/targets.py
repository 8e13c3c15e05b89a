"""Performance targets: the required speedup of windrow over its rivals, and whether it was reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.peers import PEERS
from bench.rivals.orders import shuffles_as_well
from bench.summary import Summary

__all__ = ["CONTENT_TARGETS", "LARGE_TARGETS", "SMALL_TARGETS", "Target", "TargetResult", "check_targets"]

_BOTH = ("windrow-threads", "windrow-ray")
_CACHED = ("windrow-threads-cached", "windrow-ray-cached")


@dataclass(frozen=True)
class Target:
    """A target throughput: ``factor`` times that of the fastest of some rivals.

    It is met if one of the systems in ``ours`` reaches it. Rivals whose measured order is worse than that of
    every system in ``ours`` do not count if they have to shuffle ``as_well``.
    """

    against: str
    factor: float
    rivals: tuple[str, ...]
    ours: tuple[str, ...] = _BOTH
    as_well: bool = False


@dataclass(frozen=True)
class TargetResult:
    """Description of a target, and whether it was met."""

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
    target_results = [_check_target(target, summaries) for target in targets]
    return [one for one in target_results if one is not None]


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
