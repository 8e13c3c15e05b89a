"""Who is killed when: by a seed, each kind about as often."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["KINDS", "Kill", "Planned", "plan_kills"]

# A raylet dies whatever it does, or when it holds map outputs that are then lost. "starting" kills the
# workers of a node and the first that Ray starts in their place, before it has registered. "pressure"
# kills nothing: another task fills a store, so that Ray has to spill.
KINDS = ("worker", "raylet", "objects", "coordinator", "trainer", "pressure", "starting")
_MIN_SECONDS = 0.2


@dataclass(frozen=True)
class Planned:
    """A kill to come: so many seconds after the one before."""

    after_seconds: float
    kind: str


@dataclass(frozen=True)
class Kill:
    """What was done, and when; ``shard`` is a trainer's."""

    time: float
    kind: str
    shard: int | None = None


def plan_kills(seed: int, kills: int, seconds: float, kinds: Sequence[str] = KINDS) -> Iterator[Planned]:
    """Kills at random moments of some seconds; each round of them has one of each kind."""
    chance = random.Random(seed)
    moments = sorted(chance.uniform(0, seconds) for _ in range(kills))
    round_: list[str] = []
    before = 0.0
    for moment in moments:
        if not round_:
            round_ = list(kinds)
            chance.shuffle(round_)
        yield Planned(max(_MIN_SECONDS, moment - before), round_.pop())
        before = moment
