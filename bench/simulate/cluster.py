"""The simulated cluster: nodes with CPUs and objects, both of which are lost when a node dies.

An object is a map output: for each destination and slice, row numbers by run and place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from bench.simulate.scenario import Dataset, Scenario
from bench.simulation.machines import Job, Machines, ObjectLost
from bench.simulation.world import Violation, World
from windrow.core.errors import SourceError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.cache.disk_cache import CacheReport
from windrow.pipeline.tasks.output_limit import OutputLimit, OutputLimitError
from windrow.pipeline.tasks.task import Corruption, Task, TaskReport
from windrow.shuffle.order.runs import Run
from windrow.shuffle.order.step_runs import find_destinations

FAILED = "a block that cannot be read"
CORRUPT = "a block that cannot be decoded"

# Ray runs a task at most nine times; in this model the last attempt always succeeds
_TRIES = 8
_TRANSFER_SECONDS = 0.05
_PLACE_SECONDS = 0.02
# a run's number within the slice -> (place, row) each
MapOutput = dict[int, list[tuple[int, int]]]


class Handle:
    """A reference to an object, with its owner, and the node that holds it with that node's incarnation."""

    __slots__ = ("_world", "confirmed", "location", "map_output", "owner", "ready_at", "size_bytes")

    def __init__(
        self, world: World, map_output: MapOutput, size_bytes: int, owner: int, location: tuple[int, int]
    ) -> None:
        self._world = world
        self.map_output = map_output
        self.size_bytes = size_bytes
        self.owner = owner
        self.location = location
        self.ready_at = 0.0
        self.confirmed = False
        world.live_handles[owner] += 1

    def __del__(self) -> None:
        self._world.live_handles[self.owner] -= 1


def map_rows(dataset: Dataset, task: Task) -> list[list[MapOutput]]:
    """[destination][slice] -> map output of a task that computes positions."""
    ordering = task.ordering
    assert ordering is not None, "rows are placed by tasks that compute positions"
    rows = [row for block in task.blocks for row in range(dataset.firsts[block], dataset.firsts[block + 1])]
    first = ordering.offsets[0]
    epoch_rows = ordering.order.epoch_rows(first, first + len(rows))
    destinations = find_destinations(ordering.layouts)
    sources, runs, places = destinations.assign(epoch_rows)
    starts = destinations.slice_starts.tolist()
    map_outputs: list[MapOutput] = [{} for _ in pairwise(starts)]
    entries = range(len(rows)) if sources is None else sources.tolist()
    for source, run, place in zip(entries, runs.tolist(), places.tolist(), strict=True):
        if run < starts[-1]:
            at = bisect_right(starts, run) - 1
            map_outputs[at].setdefault(run - starts[at], []).append((place, rows[source]))
    slices = ordering.layouts[0].slices
    return [map_outputs[i : i + slices] for i in range(0, len(map_outputs), slices)]


class Cluster(Machines):
    def __init__(self, world: World, scenario: Scenario, program: Program) -> None:
        self._world, self._scenario, self._program = world, scenario, program
        self._free_cpus = list(scenario.nodes)
        self._incarnations = [0] * len(self._free_cpus)
        self._node_is_up = [True] * len(self._free_cpus)
        self._queue: deque[Job] = deque()
        self._owner = 0
        self._output_bytes = scenario.output_bytes(program)
        # blocks cached on each node's disk; None once that is full
        self._disks: list[set[int] | None] = [set() for _ in self._free_cpus]

    def set_owner(self, owner: int) -> None:
        """Set the coordinator incarnation that owns objects; queued tasks of earlier incarnations are dropped."""
        self._owner = owner
        self._queue = deque(job for job in self._queue if job.owner == owner)

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        self._start()

    def lose_node(self, downtime_seconds: float) -> None:
        """Kill a node with its tasks and objects; it rejoins later. The last node never dies."""
        nodes = [node for node, is_up in enumerate(self._node_is_up) if is_up]
        if len(nodes) < 2:
            return
        node = self._world.rng.choice(nodes)
        self._world.fault("node left", node)
        self._node_is_up[node] = False
        self._disks[node] = set()
        self._incarnations[node] += 1
        self._world.after(downtime_seconds, self._rejoin, node)

    def _rejoin(self, node: int) -> None:
        self._world.fault("node joined", node)
        self._node_is_up[node] = True
        self._free_cpus[node] = self._scenario.nodes[node]
        self._start()

    def transfer(self, node: str, handles: Sequence[Handle], done: Callable[[], None]) -> None:
        self._world.after(_TRANSFER_SECONDS * self._world.rng.random(), done)

    def spend_placing(self, shard: int, run: Run, then: Callable[[], None]) -> None:
        self._world.after(_PLACE_SECONDS * self._world.rng.random(), then)

    @staticmethod
    def place_rows(map_outputs: Sequence[MapOutput], run: Run) -> list[int]:
        rows: list[int | None] = [None] * run.rows
        for map_output in map_outputs:
            for place, row in map_output.get(run.index, ()):
                if place >= run.rows or rows[place] is not None:
                    raise ValueError(f"two rows at place {place} of a run of {run.rows} rows")
                rows[place] = row
        found = [row for row in rows if row is not None]
        if len(found) < run.rows:
            raise ValueError(f"{run.rows - len(found)} of the {run.rows} rows of a run are missing")
        return found

    def check_available(self, handles: Sequence[Handle]) -> None:
        """Raise ObjectLost for any that is not available; lost ones start being reconstructed, all at the same time."""
        if not all(map(self.is_owned, handles)):
            raise ObjectLost("its owner is dead")
        late = [self._seconds_until_available(handle) for handle in handles]
        if any(late):
            raise ObjectLost("it is being reconstructed")

    def _seconds_until_available(self, handle: Handle) -> float:
        """Seconds until an object is available; a lost one starts being reconstructed."""
        node, incarnation = handle.location
        if not handle.confirmed and self._world.happens(self._world.faults.object_loss):
            self._world.fault("object vanished")
            incarnation -= 1
        handle.confirmed = True
        if self._incarnations[node] != incarnation:
            handle.location = node, self._incarnations[node]
            handle.ready_at = self._world.now + self._world.rng.uniform(0.1, 3.0)
        return max(0.0, handle.ready_at - self._world.now)

    def is_owned(self, handle: Handle) -> bool:
        return handle.owner == self._owner

    def _start(self) -> None:
        while self._queue:
            nodes = [node for node, free in enumerate(self._free_cpus) if free and self._node_is_up[node]]
            if not nodes:
                return
            job, node = self._queue.popleft(), self._world.rng.choice(nodes)
            self._free_cpus[node] -= 1
            seconds = self._scenario.task_seconds * self._world.rng.uniform(0.1, 2.0)
            late = max(map(self._seconds_until_available, job.inputs), default=0.0)
            if late and job.task.found and self._world.happens(0.8):
                # Ray does not reconstruct these
                self._free_cpus[node] += 1
                self._world.fault("cached block lost", *_key(job.task))
                self._world.send(job.lost, job.task)
            else:
                self._world.after(seconds + late, self._end, job, node, self._incarnations[node])

    def _end(self, job: Job, node: int, incarnation: int) -> None:
        died = self._incarnations[node] != incarnation
        if not died:
            self._free_cpus[node] += 1
        if job.owner == self._owner:
            job.tries += 1
            if died or (job.tries < _TRIES and self._world.happens(self._world.faults.crash)):
                self._world.fault("task died", *_key(job.task))
                self._queue.append(job)
            elif self._world.happens(self._world.faults.fail):
                self._world.fault("task failed", *_key(job.task))
                self._world.send(job.failed, Failure.capture(SourceError(FAILED)))
            else:
                self._world.send(job.done, job.task, *self._perform(job, (node, incarnation)))
        self._start()

    def _perform(self, job: Job, location: tuple[int, int]) -> tuple[TaskReport, Any, list[Handle]]:
        task, dataset = job.task, self._scenario.dataset
        make_handle = partial(Handle, self._world, owner=job.owner, location=location)
        cached_bytes = tuple(int(dataset.blocks.memory_bytes[task.blocks[at]]) for at in task.keeps)
        cached_handles = [make_handle({}, size) for size in cached_bytes]
        cache_report = CacheReport(len(task.found), len(task.blocks) - len(task.found), cached_bytes)
        if task.reads and self._program.job.cache == "disk":
            cache_report = self._use_disk(task, location[0])
        rows = tuple(dataset.delivered[block] for block in task.blocks)
        corrupt = self._find_corrupt(task) if task.reads else ()
        for expected, found in zip(task.rows, rows, strict=True):
            assert expected in (None, found), "a task gets the right row count of a block, if any"
        try:
            size = self._output_size(task)
        except OutputLimitError as error:
            self._world.fault("task outgrew its bound", *_key(task))
            return TaskReport((), (), None, 0.0, 0.0, shortfall=error.shortfall), None, []
        if task.ordering is None:
            report = TaskReport(rows, (size,), None, 0.0, 0.0, cache_report, corrupt)
            return report, make_handle({}, size), cached_handles
        map_outputs = map_rows(dataset, task)
        count = len(map_outputs) * len(map_outputs[0])
        output = [
            [
                make_handle(map_output, size * (at + 1) // count - size * at // count)
                for at, map_output in enumerate(slices, number * len(slices))
            ]
            for number, slices in enumerate(map_outputs)
        ]
        sizes = tuple(sum(handle.size_bytes for handle in of_slice) for of_slice in zip(*output, strict=True))
        return TaskReport(rows, sizes, None, 0.0, 0.0, cache_report), output, cached_handles

    def _use_disk(self, task: Task, node: int) -> CacheReport:
        """Look up and cache the blocks of a task on its node's disk, which may become full meanwhile."""
        hits = written = 0
        for block in task.blocks:
            cached = self._disks[node]
            if cached is not None and block in cached:
                hits += 1
            elif cached is not None and self._world.happens(self._world.faults.disk_full):
                self._world.fault("cache disk full", node)
                self._disks[node] = None
                missed = len(task.blocks) - hits
                return CacheReport(hits, missed, (), written, errors=1, first_error="the disk is full")
            elif cached is not None:
                cached.add(block)
                written += int(self._scenario.dataset.blocks.memory_bytes[block])
        return CacheReport(hits, len(task.blocks) - hits, (), written)

    def _output_size(self, task: Task) -> int:
        """Bytes of a task's output, checked against its limit block by block."""
        if self._scenario.dataset.growths is None:
            expected = int(self._program.estimate.held_bytes[list(task.blocks)].sum())
            return int(expected * self._scenario.growth)
        limit, sizes = OutputLimit(task.max_bytes, task.rows, samples=False), self._output_bytes
        total = 0
        for at, block in enumerate(task.blocks):
            total += int(sizes[block])
            limit.add(at, self._scenario.dataset.delivered[block], total)
        return total

    def _find_corrupt(self, task: Task) -> tuple[Corruption, ...]:
        """The corrupt blocks that a task reads; a task that places rows must not read any."""
        read = [block for at, block in enumerate(task.blocks) if at not in (*task.skips, *task.found)]
        corrupt = [block for block in read if block in self._scenario.dataset.corrupt]
        if corrupt and task.ordering is not None:
            raise Violation(f"corrupt blocks {corrupt} are read to be placed")
        for block in corrupt:
            self._world.fault("corrupt block", block)
        return tuple(Corruption(block, CORRUPT) for block in corrupt)


def _key(task: Task) -> tuple[int, int, int, int]:
    work = task.work
    return work.epoch, work.window, work.part, work.stage
