"""The kill plan: kinds and times of faults, drawn from a seed, with each kind about equally often."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["KINDS", "Kill", "PlannedKill", "plan_kills"]

# "raylet" kills any raylet, "objects" one that holds map outputs, which are then lost. "starting" kills the
# workers of a node and the first one that Ray starts to replace them, before it has registered. "pressure"
# kills nothing: another task fills an object store, so that Ray has to spill.
KINDS = ("worker", "raylet", "objects", "coordinator", "trainer", "pressure", "starting")
_MIN_SECONDS = 0.2


@dataclass(frozen=True)
class PlannedKill:
    """A planned kill, ``after_seconds`` after the previous one."""

    after_seconds: float
    kind: str


@dataclass(frozen=True)
class Kill:
    """An executed kill and its Unix time; ``shard`` is that of a killed trainer."""

    time: float
    kind: str
    shard: int | None = None


def plan_kills(seed: int, kills: int, seconds: float, kinds: Sequence[str] = KINDS) -> Iterator[PlannedKill]:
    """Plan kills at random times within ``seconds``; each round contains one kill of each kind."""
    rng = random.Random(seed)
    moments = sorted(rng.uniform(0, seconds) for _ in range(kills))
    round_: list[str] = []
    before = 0.0
    for moment in moments:
        if not round_:
            round_ = list(kinds)
            rng.shuffle(round_)
        yield PlannedKill(max(_MIN_SECONDS, moment - before), round_.pop())
        before = moment
