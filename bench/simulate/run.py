"""One seed: a whole stream, in as many runs as it takes, with every promise checked."""

from __future__ import annotations

import gc
import random
import traceback
from collections import Counter
from dataclasses import dataclass, field

from bench.simulate.actor import Actor
from bench.simulate.crew import Crew
from bench.simulate.law import Law
from bench.simulate.machines import Machines
from bench.simulate.scenario import Scenario, Split, draw_scenario, draw_split
from bench.simulate.trainer import Trainer
from bench.simulate.world import Violation, World
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.core import CoordinatorCore

__all__ = ["Outcome", "simulate"]

# no stream here is longer, whatever happens to it
_LONGEST_SECONDS = 3_600.0
_RUNS = 3
# late messages arrive and late tasks end within this time, as a rule and at most
_SETTLE_SECONDS, _LONGEST_SETTLE_SECONDS = 4.0, 60.0


@dataclass
class Outcome:
    """What became of a seed.

    Attributes
    ----------
    failure
        The promise that was broken, in words; empty if none was.
    digest
        Of everything that happened, in its order.
    """

    seed: int
    failure: str = ""
    digest: str = ""
    events: int = 0
    runs: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] | None = None


def simulate(
    seed: int, *, keep_trace: bool = False, coordination: type[CoordinatorCore] = CoordinatorCore
) -> Outcome:
    """Run one seed.

    Parameters
    ----------
    coordination
        What serves the shards: another one where a fault is planted.
    """
    chance = random.Random(seed)
    scenario = draw_scenario(chance)
    world = World(chance, keep_trace=keep_trace)
    world.faults = scenario.faults
    outcome = Outcome(seed)
    world.note(scenario)
    # what a cycle holds is held, until a time that no seed tells
    collects = gc.isenabled()
    gc.disable()
    try:
        _run_stream(world, scenario, coordination, outcome)
    except Violation as broken:
        outcome.failure = str(broken)
    except Exception:
        outcome.failure = traceback.format_exc()
    finally:
        if collects:
            gc.enable()
    world.note("END", outcome.failure)
    outcome.digest, outcome.events, outcome.seconds = world.digest, world.events, world.now
    outcome.faults, outcome.trace = world.happened, world.trace
    return outcome


def _run_stream(
    world: World, scenario: Scenario, coordination: type[CoordinatorCore], outcome: Outcome
) -> None:
    law = Law(scenario.job, scenario.dataset)
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        split = draw_split(world.chance)
        outcome.runs += 1
        resizes = split.resize_at is not None and outcome.runs < _RUNS
        cursor = _Run(world, scenario, split, law, cursor, coordination).run(resizes=resizes)


class _Run:
    """One run: its coordinator, its trainers, and what befalls them."""

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        split: Split,
        law: Law,
        start: Cursor,
        coordination: type[CoordinatorCore],
    ) -> None:
        self._world, self._split, self._law, self._start = world, split, law, start
        world.note("RUN", split, start)
        program = scenario.program(split)
        self._machines = Machines(world, scenario, program)
        nodes = {shard: f"node {world.chance.randrange(4)}" for shard in program.members}
        self._actor = Actor(world, scenario, program, self._machines, nodes, coordination)
        self._crew = Crew(world, self._actor, self._machines, law, split, start, scenario.job)
        self._ended = self._resized = False
        self._trainers = [Trainer(self._crew, shard) for shard in program.members]
        self._crew.trainers.extend(self._trainers)

    def run(self, *, resizes: bool) -> Cursor | None:
        """Run to the end, or until another number of trainers goes on; returns from where."""
        world = self._world
        for seconds in world.faults.restarts:
            world.after(seconds, self._restart)
        for seconds in world.faults.leaves:
            world.after(seconds, self._machines.leave, world.between(0.5, 10.0))
        if resizes and self._split.resize_at is not None:
            world.after(self._split.resize_at, self._resize)
        began = world.now

        def done() -> bool:
            if world.now - began > _LONGEST_SECONDS:
                raise Violation(f"the stream has not ended after {_LONGEST_SECONDS:.0f} s")
            return self._resized or all(trainer.closed for trainer in self._trainers)

        world.clock.run(done)
        cursor = self._consumed() if self._resized else None
        if not self._resized:
            self._settle()
        self._end()
        return cursor

    def _restart(self) -> None:
        if not self._ended:
            for trainer in self._trainers:
                trainer.kill_zombies()
            self._actor.die(self._world.between(0.2, 4.0))

    def _resize(self) -> None:
        if not self._ended:
            self._world.fault("another number of trainers")
            self._resized = True

    def _consumed(self) -> Cursor:
        """What all trainers together have consumed for certain."""
        return self._crew.cursor(*min(trainer.at for trainer in self._trainers))

    def _settle(self) -> None:
        """Nothing may be left once everybody has closed."""
        world = self._world
        began = world.now
        for trainer in self._trainers:
            trainer.kill_zombies()
        held_bytes, handles = -1, -1
        while (held_bytes or handles) and world.now < began + _LONGEST_SETTLE_SECONDS:
            world.run_for(_SETTLE_SECONDS)
            held_bytes = self._actor.coordination.run_stats(spans=False).held_bytes
            handles = world.live_handles[self._actor.life]
        if held_bytes or handles:
            raise Violation(f"{held_bytes} bytes and {handles} handles are held though all shards are closed")

    def _end(self) -> None:
        self._ended = True
        for trainer in self._trainers:
            trainer.kill_zombies()
            trainer.die(back_seconds=None)
        self._actor.end()
