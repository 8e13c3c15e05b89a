"""State that all parts of a simulation share: clock, random generator, faults, event trace."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

_USUAL_DELAY_SECONDS = 0.004


@dataclass(frozen=True)
class Faults:
    """Faults to inject; without a unit in its name, a value is a probability per opportunity."""

    late: float = 0.0
    late_seconds: float = 0.0
    # a task dies and is retried; an object is lost when it is requested; the end of a transfer is not noticed
    crash: float = 0.0
    object_loss: float = 0.0
    unheard: float = 0.0
    # a task raises an error, which ends the run for all shards; they restart
    fail: float = 0.0
    # times at which the coordinator dies, and a node
    restarts: tuple[float, ...] = ()
    node_losses: tuple[float, ...] = ()
    # at each step of a trainer: it pauses, dies, is replaced although it is alive, closes, breaks out of the epoch
    stall: float = 0.0
    stall_seconds: float = 0.0
    die: float = 0.0
    zombie: float = 0.0
    close: float = 0.0
    early_stop: float = 0.0
    # a block does not fit on its node's disk, which then stays full
    disk_full: float = 0.0
    # trainers start within this time
    attach_seconds: float = 0.0


class Violation(Exception):  # noqa: N818 - what a simulation finds, not an error of it
    pass


class World:
    """The clock, the random generator and the trace of a simulation; messages usually take up to ``delay_seconds``."""

    def __init__(
        self,
        rng: random.Random,
        *,
        keep_trace: bool = False,
        is_recorded: bool = True,
        delay_seconds: float = _USUAL_DELAY_SECONDS,
    ) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._is_recorded, self._delay_seconds = is_recorded, delay_seconds
        self.rng = rng
        self.faults = Faults()
        self.fault_counts: Counter[str] = Counter()
        self.events = 0
        self.incarnations = 0
        self.live_handles: Counter[int] = Counter()
        self.trace: list[str] | None = [] if keep_trace else None
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def record(self, *what: Any) -> None:
        if not self._is_recorded:
            return
        self.events += 1
        line = f"{self.now:.6f} {what}"
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace.append(f"{self.now:10.4f}  {' '.join(map(str, what))}")

    def fault(self, kind: str, *what: Any) -> None:
        self.fault_counts[kind] += 1
        self.record("FAULT", kind, *what)

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call after some seconds; calls due at the same time run in the order of scheduling."""
        call = partial(call, *args) if args else call
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), call))

    def run(self, done: Callable[[], bool]) -> None:
        """Process events until ``done`` returns true."""
        while not done():
            if not self._due:
                raise RuntimeError("the simulation is deadlocked: no events are left")
            self.now, _, call = heapq.heappop(self._due)
            call()

    def run_for(self, seconds: float) -> None:
        passed: list[bool] = []
        self.after(seconds, passed.append, True)
        self.run(lambda: bool(passed))

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """Deliver a message after a random, sometimes long, delay; messages may overtake each other."""
        seconds = self._delay_seconds * self.rng.random()
        if self.happens(self.faults.late):
            seconds = self.rng.uniform(0.0, self.faults.late_seconds)
            self.fault_counts["late message"] += 1
        self.after(seconds, call, *args)
