"""How many times as fast as its rivals windrow is to be, and whether it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Figures
from bench.peers import PEERS

__all__ = ["LARGE_BARS", "SMALL_BARS", "Bar", "Judgement", "judge_bars"]

_BOTH = ("windrow-threads", "windrow-ray")
_CACHED = ("windrow-threads-cached", "windrow-ray-cached")


@dataclass(frozen=True)
class Bar:
    """``factor`` times the bytes a second of the fastest of some rivals.

    ``ours`` are held against it one by one; it is held when one of them reaches it.
    """

    against: str
    factor: float
    rivals: tuple[str, ...]
    ours: tuple[str, ...] = _BOTH


@dataclass(frozen=True)
class Judgement:
    """One bar in words, and whether it was held."""

    text: str
    held: bool


LARGE_BARS = (
    Bar("Ray Data random_shuffle, reading again", 3.5, ("ray-shuffle",)),
    Bar("Ray Data after materialize", 2.0, ("ray-materialize",), _CACHED),
    Bar("Daft shuffle", 4.0, ("daft",), ("windrow-threads",)),
    Bar("Petastorm's best loader", 8.0, ("petastorm", "petastorm-memory")),
)
SMALL_BARS = (
    Bar("Ray Data after materialize", 8.0, ("ray-materialize",), _CACHED),
    Bar("every loader by row", 50.0, tuple(name for name, peer in PEERS.items() if peer.by_row)),
)


def judge_bars(bars: Sequence[Bar], figures: Mapping[str, Figures]) -> list[Judgement]:
    """A judgement for each bar of which a rival and one of ours were measured."""
    judged = [_judge(bar, figures) for bar in bars]
    return [one for one in judged if one is not None]


def _judge(bar: Bar, figures: Mapping[str, Figures]) -> Judgement | None:
    rivals = [figures[name] for name in bar.rivals if name in figures]
    ours = [figures[name] for name in bar.ours if name in figures]
    if not rivals or not ours:
        return None
    best = max(rivals, key=lambda one: one.megabytes_per_second)
    times = {one.title: one.megabytes_per_second / best.megabytes_per_second for one in ours}
    told = "; ".join(
        f"{title} {factor:.1f} x, {'held' if factor >= bar.factor else 'NOT held'}"
        for title, factor in times.items()
    )
    fastest = f" (the fastest: {best.title})" if len(bar.rivals) > 1 else ""
    text = f"{bar.factor:g} x {bar.against}{fastest}: {told}"
    return Judgement(text, max(times.values()) >= bar.factor)
