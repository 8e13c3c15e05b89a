"""State that all parts of a simulation share: clock, random generator, event trace."""

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
    """A guarantee was violated."""


class World:
    """The clock, the random generator and the trace of a simulation.

    Attributes
    ----------
    faults
        The faults to inject.
    fault_counts
        Number of injected faults of each kind.
    events
        Number of events so far.
    incarnations
        Number of coordinator incarnations so far.
    live_handles
        Number of references to the objects of each incarnation.
    """

    def __init__(self, rng: random.Random, *, keep_trace: bool = False) -> None:
        self.clock = Clock()
        self.rng = rng
        self.faults = Faults()
        self.fault_counts: Counter[str] = Counter()
        self.events = 0
        self.incarnations = 0
        self.live_handles: Counter[int] = Counter()
        self.trace: list[str] | None = [] if keep_trace else None
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self.clock.now

    @property
    def digest(self) -> str:
        """Hash of all events in their order."""
        return self._digest.hexdigest()

    def record(self, *what: Any) -> None:
        """Record an event."""
        self.events += 1
        line = f"{self.clock.now:.6f} {what}"
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace.append(f"{self.clock.now:10.4f}  {' '.join(map(str, what))}")

    def fault(self, kind: str, *what: Any) -> None:
        """Record an injected fault."""
        self.fault_counts[kind] += 1
        self.record("FAULT", kind, *what)

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call."""
        self.clock.after(seconds, partial(call, *args) if args else call)

    def run_for(self, seconds: float) -> None:
        """Process events for some simulated seconds."""
        passed: list[bool] = []
        self.after(seconds, passed.append, True)
        self.clock.run(lambda: bool(passed))

    def uniform(self, least: float, most: float) -> float:
        """Draw a uniform random number."""
        return least + (most - least) * self.rng.random()

    def happens(self, probability: float) -> bool:
        """Draw whether an event of this probability occurs."""
        return probability > 0 and self.rng.random() < probability

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """Deliver a message after a random, sometimes long, delay; messages may overtake each other."""
        seconds = _USUAL_DELAY_SECONDS * self.rng.random()
        if self.happens(self.faults.late):
            seconds = self.uniform(0.0, self.faults.late_seconds)
            self.fault_counts["late message"] += 1
        self.after(seconds, call, *args)
