"""The nodes: CPUs that run tasks, and objects, both of which go when a node does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.simulate.scenario import Scenario
from bench.simulate.work import Handle, map_rows
from bench.simulate.world import Violation, World
from windrow.core.errors import SourceError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.cache.cache_report import CacheReport
from windrow.pipeline.tasks.corrupt_blocks import Corruption
from windrow.pipeline.tasks.map_task import Task, TaskReport
from windrow.pipeline.tasks.output_limit import OutputLimit, OutputLimitError

__all__ = ["FAILED", "Job", "Machines", "Vanished"]

FAILED = "a block that cannot be read"
CORRUPT = "a block that cannot be decoded"

# Ray runs a task nine times at most; so often here, and the last time it ends well
_TRIES = 8


class Vanished(Exception):  # noqa: N818
    """An object is not there any more."""


@dataclass
class Job:
    """A task on its way: who owns it, and who is told."""

    task: Task
    inputs: Sequence[Handle]
    owner: int
    done: Callable[[Task, TaskReport, Any, list[Handle]], None]
    failed: Callable[[Failure], None]
    lost: Callable[[Task], None]
    tries: int = 0


class Machines:
    """All nodes of a cluster, for one run."""

    def __init__(self, world: World, scenario: Scenario, program: Program) -> None:
        self._world, self._scenario, self._program = world, scenario, program
        self._free = list(scenario.nodes)
        self._lives = [0] * len(self._free)
        self._here = [True] * len(self._free)
        self._queue: deque[Job] = deque()
        self._owner = 0
        self._output_bytes = scenario.output_bytes(program)
        # blocks cached on each node's disk; None once that is full
        self._disks: list[set[int] | None] = [set() for _ in self._free]

    def disown(self, owner: int) -> None:
        """The coordinator has begun a new life: what belonged to others is lost, and their tasks end."""
        self._owner = owner
        self._queue = deque(job for job in self._queue if job.owner == owner)

    def submit(self, job: Job) -> None:
        """Run a task as soon as a CPU is free."""
        self._queue.append(job)
        self._start()

    def leave(self, back_seconds: float) -> None:
        """A node dies, with its tasks and objects, and comes back later. The last one stays."""
        nodes = [node for node, here in enumerate(self._here) if here]
        if len(nodes) < 2:
            return
        node = self._world.chance.choice(nodes)
        self._world.fault("node left", node)
        self._here[node] = False
        self._disks[node] = set()
        self._lives[node] += 1
        self._world.after(back_seconds, self._come_back, node)

    def _come_back(self, node: int) -> None:
        self._world.fault("node joined", node)
        self._here[node] = True
        self._free[node] = self._scenario.nodes[node]
        self._start()

    def find(self, handles: Sequence[Handle]) -> None:
        """See that objects are there; those that are not are being made again from now on, all at once.

        Raises
        ------
        Vanished
            If any is not; for good where its owner is gone.
        """
        if not all(map(self.is_owned, handles)):
            raise Vanished("its owner is gone")
        late = [self._awaits(handle) for handle in handles]
        if any(late):
            raise Vanished("it is being made again")

    def _awaits(self, handle: Handle) -> float:
        """In how many seconds an object will be there."""
        node, life = handle.stands
        if not handle.proven and self._world.happens(self._world.faults.vanish):
            self._world.fault("object vanished")
            life -= 1
        handle.proven = True
        if self._lives[node] != life:
            handle.stands = node, self._lives[node]
            handle.ready_at = self._world.now + self._world.between(0.1, 3.0)
        return max(0.0, handle.ready_at - self._world.now)

    def is_owned(self, handle: Handle) -> bool:
        """Whether the coordinator that owns an object still lives."""
        return handle.owner == self._owner

    def _start(self) -> None:
        while self._queue:
            nodes = [node for node, free in enumerate(self._free) if free and self._here[node]]
            if not nodes:
                return
            job, node = self._queue.popleft(), self._world.chance.choice(nodes)
            self._free[node] -= 1
            seconds = self._scenario.task_seconds * self._world.between(0.1, 2.0)
            late = max(map(self._awaits, job.inputs), default=0.0)
            if late and job.task.found and self._world.happens(0.8):
                # Ray does not make them again
                self._free[node] += 1
                self._world.fault("cached block lost", *_key(job.task))
                self._world.send(job.lost, job.task)
            else:
                self._world.after(seconds + late, self._end, job, node, self._lives[node])

    def _end(self, job: Job, node: int, life: int) -> None:
        died = self._lives[node] != life
        if not died:
            self._free[node] += 1
        if job.owner == self._owner:
            job.tries += 1
            if died or (job.tries < _TRIES and self._world.happens(self._world.faults.crash)):
                self._world.fault("task died", *_key(job.task))
                self._queue.append(job)
            elif self._world.happens(self._world.faults.fail):
                self._world.fault("task failed", *_key(job.task))
                self._world.send(job.failed, Failure.capture(SourceError(FAILED)))
            else:
                self._world.send(job.done, job.task, *self._perform(job, (node, life)))
        self._start()

    def _perform(self, job: Job, stands: tuple[int, int]) -> tuple[TaskReport, Any, list[Handle]]:
        task, dataset = job.task, self._scenario.dataset
        cached_bytes = tuple(int(dataset.blocks.memory_bytes[task.blocks[at]]) for at in task.keeps)
        kept = [Handle(self._world, {}, size, job.owner, stands) for size in cached_bytes]
        told = CacheReport(len(task.found), len(task.blocks) - len(task.found), cached_bytes)
        if task.reads and self._program.job.cache == "disk":
            told = self._use_disk(task, stands[0])
        rows = tuple(dataset.kept[block] for block in task.blocks)
        corrupt = self._find_corrupt(task) if task.reads else ()
        for expected, found in zip(task.rows, rows, strict=True):
            assert expected in (None, found), "a task is told how many rows a block has"
        try:
            size = self._put_out(task)
        except OutputLimitError as error:
            self._world.fault("task outgrew its bound", *_key(task))
            return TaskReport((), (), None, 0.0, 0.0, shortfall=error.shortfall), None, []
        if task.ordering is None:
            output: Any = Handle(self._world, {}, size, job.owner, stands)
            return TaskReport(rows, (size,), None, 0.0, 0.0, told, corrupt), output, kept
        map_outputs = map_rows(dataset, task)
        parts = [len(map_outputs) * len(map_outputs[0])] * len(map_outputs)
        output = [
            [
                Handle(
                    self._world, map_output, size * (at + 1) // count - size * at // count, job.owner, stands
                )
                for at, map_output in enumerate(slices, number * len(slices))
            ]
            for number, (slices, count) in enumerate(zip(map_outputs, parts, strict=True))
        ]
        sizes = tuple(sum(handle.size_bytes for handle in of_slice) for of_slice in zip(*output, strict=True))
        return TaskReport(rows, sizes, None, 0.0, 0.0, told), output, kept

    def _use_disk(self, task: Task, node: int) -> CacheReport:
        """Find and keep the blocks of a task on its node's disk, which may become full in the middle of it."""
        hits = written = 0
        for block in task.blocks:
            cached = self._disks[node]
            if cached is not None and block in cached:
                hits += 1
            elif cached is not None and self._world.happens(self._world.faults.full):
                self._world.fault("cache disk full", node)
                self._disks[node] = None
                missed = len(task.blocks) - hits
                return CacheReport(hits, missed, (), written, errors=1, first_error="the disk is full")
            elif cached is not None:
                cached.add(block)
                written += int(self._scenario.dataset.blocks.memory_bytes[block])
        return CacheReport(hits, len(task.blocks) - hits, (), written)

    def _put_out(self, task: Task) -> int:
        """Bytes of a task's output, which is looked at block by block.

        Raises
        ------
        OutputLimitError
            If it is more than the task may put out.
        """
        if self._scenario.dataset.growths is None:
            return int(self.expected_bytes(task.blocks) * self._scenario.growth)
        limit, sizes = OutputLimit(task.max_bytes, task.rows, samples=False), self._output_bytes
        total = 0
        for at, block in enumerate(task.blocks):
            total += int(sizes[block])
            limit.add(at, self._scenario.dataset.kept[block], total)
        return total

    def _find_corrupt(self, task: Task) -> tuple[Corruption, ...]:
        """The corrupt blocks that a task reads, which may be those alone that are not known as such."""
        read = [block for at, block in enumerate(task.blocks) if at not in (*task.skips, *task.found)]
        corrupt = [block for block in read if block in self._scenario.dataset.corrupt]
        if corrupt and task.ordering is not None:
            raise Violation(f"corrupt blocks {corrupt} are read to be placed")
        for block in corrupt:
            self._world.fault("corrupt block", block)
        return tuple(Corruption(block, CORRUPT) for block in corrupt)

    def expected_bytes(self, blocks: Sequence[int]) -> int:
        """What a task is expected to put out."""
        return int(self._program.held_bytes[list(blocks)].sum())


def _key(task: Task) -> tuple[int, int, int, int]:
    work = task.work
    return work.epoch, work.window, work.part, work.stage
