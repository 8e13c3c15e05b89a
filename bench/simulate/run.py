"""One seed: a complete stream in one or more runs, with every guarantee checked."""

from __future__ import annotations

import gc
import random
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from bench.simulate.cluster import Cluster
from bench.simulate.reference_order import ReferenceOrder
from bench.simulate.scenario import Scenario, Split, draw_scenario, draw_split
from bench.simulate.trainer import Trainer, TrainerGroup
from bench.simulation.actor import Actor
from bench.simulation.world import Violation, World
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.plan.cursor import Cursor

# upper bound for every simulated stream, whatever faults it meets
_LONGEST_SECONDS = 3_600.0
_RUNS = 3
# delayed messages arrive and running tasks end within this time: usually, and at most
_SETTLE_SECONDS, _LONGEST_SETTLE_SECONDS = 4.0, 60.0


@dataclass
class Outcome:
    """The result of one seed; ``failure`` describes the violated guarantee, and ``digest`` is of all events."""

    seed: int
    failure: str = ""
    digest: str = ""
    events: int = 0
    runs: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    trace: list[str] | None = None


def simulate(seed: int, *, keep_trace: bool = False) -> Outcome:
    rng = random.Random(seed)
    scenario = draw_scenario(rng)
    world = World(rng, keep_trace=keep_trace)
    world.faults = scenario.faults
    outcome = Outcome(seed)
    world.record(scenario)
    # the garbage collector would free cycles at times that the seed does not determine
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        _run_stream(world, scenario, outcome)
    except Violation as broken:
        outcome.failure = str(broken)
    except Exception:
        outcome.failure = traceback.format_exc()
    finally:
        if gc_was_enabled:
            gc.enable()
    world.record("END", outcome.failure)
    outcome.digest, outcome.events, outcome.seconds = world.digest, world.events, world.now
    outcome.faults, outcome.trace = world.fault_counts, world.trace
    return outcome


def _run_stream(world: World, scenario: Scenario, outcome: Outcome) -> None:
    reference = ReferenceOrder(scenario.job, scenario.dataset)
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        split = draw_split(world.rng)
        outcome.runs += 1
        resizes = split.resize_at is not None and outcome.runs < _RUNS
        cursor = _Run(world, scenario, split, reference, cursor).run(resizes=resizes)


class _Run:
    def __init__(
        self, world: World, scenario: Scenario, split: Split, reference: ReferenceOrder, start: Cursor
    ) -> None:
        self._world, self._split = world, split
        world.record("RUN", split, start)
        program = scenario.program(split)
        self._cluster = Cluster(world, scenario, program)
        nodes = {shard: f"node {world.rng.randrange(4)}" for shard in program.members}
        check = partial(check_held_bytes, scenario)
        resources = scenario.resources(program)
        self._actor = Actor(world, program, resources, self._cluster, nodes, check)
        self._group = TrainerGroup(world, self._actor, self._cluster, reference, split, start, scenario.job)
        self._ended = self._resized = False
        self._trainers = [Trainer(self._group, shard) for shard in program.members]
        self._group.trainers.extend(self._trainers)

    def run(self, *, resizes: bool) -> Cursor | None:
        """Run to the end, or until the number of trainers changes; returns the cursor to resume from, if any."""
        world = self._world
        for seconds in world.faults.restarts:
            world.after(seconds, self._restart)
        for seconds in world.faults.node_losses:
            world.after(seconds, self._cluster.lose_node, world.rng.uniform(0.5, 10.0))
        if resizes and self._split.resize_at is not None:
            world.after(self._split.resize_at, self._resize)
        began = world.now

        def done() -> bool:
            if world.now - began > _LONGEST_SECONDS:
                raise Violation(f"the stream has not ended after {_LONGEST_SECONDS:.0f} s")
            return self._resized or all(trainer.closed for trainer in self._trainers)

        world.run(done)
        cursor = None
        if self._resized:
            # every trainer has consumed its rows up to there
            cursor = self._group.cursor(*min(trainer.progress for trainer in self._trainers))
        else:
            self._settle()
        self._end()
        return cursor

    def _restart(self) -> None:
        if not self._ended:
            for trainer in self._trainers:
                trainer.kill_zombies()
            self._actor.die(self._world.rng.uniform(0.2, 4.0))

    def _resize(self) -> None:
        if not self._ended:
            self._world.fault("another number of trainers")
            self._resized = True

    def _settle(self) -> None:
        """Check that no bytes and no handles remain after all shards have closed."""
        world = self._world
        began = world.now
        for trainer in self._trainers:
            trainer.kill_zombies()
        held_bytes, handles = -1, -1
        while (held_bytes or handles) and world.now < began + _LONGEST_SETTLE_SECONDS:
            world.run_for(_SETTLE_SECONDS)
            held_bytes = self._actor.core.run_stats(spans=False).held_bytes
            handles = world.live_handles[self._actor.incarnation]
        if held_bytes or handles:
            raise Violation(
                f"{held_bytes} bytes and {handles} handles are still held after all shards have closed"
            )

    def _end(self) -> None:
        self._ended = True
        for trainer in self._trainers:
            trainer.kill_zombies()
            trainer.die(downtime_seconds=None)
        self._actor.end()


def check_held_bytes(scenario: Scenario, actor: Actor) -> None:
    """Check that the scheduler's count of held bytes is right and within the memory limit."""
    driver = actor.driver
    # only a check may read a driver's internals; outputs above their estimate are known only once they exist
    if driver is None or driver.failure is not None or scenario.growth > 1:
        return
    scheduler, held = driver._scheduler, count_buffered_bytes(driver) + actor.running_bytes
    if held != scheduler.held_bytes:
        raise Violation(f"{held} bytes are held or expected, but the scheduler counts {scheduler.held_bytes}")
    # counting the rows behind a window must not wait for memory, so it may exceed the limit
    if scenario.job.rows_known and held > scheduler.memory_bytes:
        raise Violation(f"{held} bytes are held or expected, above the limit of {scheduler.memory_bytes}")


def count_buffered_bytes(driver: Driver) -> int:
    size = 0
    for window in driver._buffered.values():
        size += sum(handle.size_bytes for handle in window.tables.values())
        for destinations in window.outputs.values():
            for slices in destinations:
                size += sum(handle.size_bytes for handle in slices if handle is not None)
    return size
