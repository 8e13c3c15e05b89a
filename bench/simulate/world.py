"""The world of a run: its time, its chance, and what has happened so far."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.scale.clock import Clock
from bench.simulate.scenario import Faults

__all__ = ["Violation", "World"]

_USUAL_DELAY_SECONDS = 0.004


class Violation(Exception):  # noqa: N818
    """A promise that was broken, in words."""


class World:
    """What everybody shares: one clock, one source of chance, one trace.

    Attributes
    ----------
    faults
        How things go wrong in this run.
    happened
        How often what went wrong.
    events
        How many things have happened.
    lives
        Of all coordinators, one after the other.
    live_handles
        How many references there are to the objects of each of those lives.
    """

    def __init__(self, chance: random.Random, *, keep_trace: bool = False) -> None:
        self.clock = Clock()
        self.chance = chance
        self.faults = Faults()
        self.happened: Counter[str] = Counter()
        self.events = 0
        self.lives = 0
        self.live_handles: Counter[int] = Counter()
        self.trace: list[str] | None = [] if keep_trace else None
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.clock.now

    @property
    def digest(self) -> str:
        """A digest of all that has happened, in its order."""
        return self._digest.hexdigest()

    def note(self, *what: Any) -> None:
        """Something happened."""
        self.events += 1
        line = f"{self.clock.now:.6f} {what}"
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace.append(f"{self.clock.now:10.4f}  {' '.join(map(str, what))}")

    def fault(self, kind: str, *what: Any) -> None:
        """Something went wrong, as it may."""
        self.happened[kind] += 1
        self.note("FAULT", kind, *what)

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Call something later."""
        self.clock.after(seconds, partial(call, *args) if args else call)

    def run_for(self, seconds: float) -> None:
        """Let so much time pass."""
        passed: list[bool] = []
        self.after(seconds, passed.append, True)
        self.clock.run(lambda: bool(passed))

    def between(self, least: float, most: float) -> float:
        """A random number."""
        return least + (most - least) * self.chance.random()

    def happens(self, probability: float) -> bool:
        """Whether something of this probability happens now."""
        return probability > 0 and self.chance.random() < probability

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """A message: it takes a while, now and then a long one, and may overtake others."""
        seconds = _USUAL_DELAY_SECONDS * self.chance.random()
        if self.happens(self.faults.late):
            seconds = self.between(0.0, self.faults.late_seconds)
            self.happened["late message"] += 1
        self.after(seconds, call, *args)
