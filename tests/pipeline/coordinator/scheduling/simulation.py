"""A cluster of one thread: runs what a scheduler says in any order, and checks every step.

The model keeps its own account of what is held, from the instructions alone. Each promise of the
scheduler is an assertion in the place where it could be broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from windrow.pipeline.coordinator.scheduling.events import (
    Abort,
    Acknowledged,
    Closed,
    Drop,
    Event,
    Finished,
    Heartbeat,
    Limits,
    Opened,
    Run,
    Tick,
)
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.coordinator.scheduling.window_state import WindowTotals
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.epoch_shape import EpochShape, Part, Stage
from windrow.pipeline.tasks.task import Work
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["Chunk", "Cluster", "Shape"]

MAP = (Stage("map", needs_order=True),)
READ_THEN_PLACE = (Stage("read", needs_order=False), Stage("place", needs_order=True))


@dataclass(frozen=True)
class Chunk:
    """A part as it really is: its rows, its bytes, and whether its rows are known before."""

    rows: int
    size_bytes: int
    known: bool = True


Shape = tuple[tuple[Chunk, ...], ...]


@dataclass
class Attempt:
    """What is held of one attempt at a window."""

    number: int
    started: set[tuple[int, int]] = field(default_factory=set)
    running: dict[Work, int] = field(default_factory=dict)
    tables: dict[int, int] = field(default_factory=dict)
    slices: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    finished: int = 0

    @property
    def held_bytes(self) -> int:
        kept = sum(size for number, size in self.slices.items() if number not in self.gone)
        return kept + sum(self.running.values()) + sum(self.tables.values())


@dataclass
class Reader:
    """A shard: what it reads, and how far it is."""

    epoch: int = 0
    window: int | None = None  # None: between epochs
    slice: int = 0
    fetched: bool = False
    closed: bool = False


class Cluster:
    """Runs a scheduler's instructions; ``shape`` is that of every epoch."""

    def __init__(
        self, shape: Shape, *, shards: int, epochs: int | None, patience: float = 5.0, **limits: Any
    ) -> None:
        self.shape = shape
        self.epochs = epochs
        self.limits = Limits(
            shards=tuple(range(shards)),
            stop_epoch=epochs,
            heartbeat_timeout_seconds=patience,
            **limits,
        )
        self.learnt: dict[tuple[int, int], int] = {}
        self.scheduler = Scheduler(self.limits, self.shape_of)
        self.readers = {shard: Reader() for shard in range(shards)}
        self.now = 0.0
        self.windows: dict[tuple[int, int], Attempt] = {}
        self.stale: dict[Work, int] = {}
        self.runs: list[Work] = []
        self.drops: list[Drop] = []
        self.unknown = any(not chunk.known for window in shape for chunk in window)

    def shape_of(self, epoch: int) -> EpochShape:
        windows = tuple(
            tuple(
                Part(chunk.rows if chunk.known else self.learnt.get((w, p)), chunk.size_bytes)
                for p, chunk in enumerate(window)
            )
            for w, window in enumerate(self.shape)
        )
        known = all(part.rows is not None for window in windows for part in window)
        return EpochShape(windows, MAP if known else READ_THEN_PLACE)

    # --- what happens

    def handle(self, event: Event) -> None:
        for instruction in self.scheduler.handle(event, self.now):
            if isinstance(instruction, Run):
                self.run(instruction.work)
            elif isinstance(instruction, Drop):
                self.drop(instruction)
            else:
                assert isinstance(instruction, Abort)
                raise AssertionError(instruction)
        assert self.scheduler.held_bytes == self.held_bytes
        assert self.scheduler.running == len(self.running) <= self.limits.slots

    def run(self, work: Work) -> None:
        key = (work.epoch, work.window)
        assert work not in self.runs, "no attempt at a task runs twice"
        assert self.epochs is None or work.epoch < self.epochs
        self.runs.append(work)
        attempt = self.windows.setdefault(key, Attempt(work.attempt))
        assert attempt.number == work.attempt, "an attempt is dropped before the next one starts"
        assert (work.part, work.stage) not in attempt.started
        attempt.started.add((work.part, work.stage))
        stages = self.scheduler.epochs.counts(work.epoch).shape.stages
        if work.stage:
            assert work.part in attempt.tables, "placing needs what was read"
        if stages[work.stage].needs_order:
            self.check_ordered(work)
        chunk = self.shape[work.window][work.part]
        attempt.running[work] = chunk.size_bytes if work.stage == 0 else 0
        if self.held_bytes > self.limits.memory_bytes and attempt.running[work]:
            # counting behind must not wait for memory: the window in memory waits for it
            assert stages == READ_THEN_PLACE
            assert work.stage == 0
            assert self.counts_behind(key)

    def counts_behind(self, key: tuple[int, int]) -> bool:
        for reader in self.readers.values():
            if reader.closed or reader.window is None or reader.epoch != key[0] or reader.window >= key[1]:
                continue
            attempt = self.windows.get((reader.epoch, reader.window))
            parts = range(len(self.shape[reader.window]))
            if not parts or (attempt and all((part, 0) in attempt.started for part in parts)):
                return True
        return False

    def check_ordered(self, work: Work) -> None:
        counts, assignment = (
            self.scheduler.epochs.counts(work.epoch),
            self.scheduler.epochs.assignment(work.epoch),
        )
        assert assignment is not None
        stop = sum(chunk.rows for window in self.shape[: work.window + 1] for chunk in window)
        assert counts.first_row(work.window + 1) == stop
        behind = [chunk for window in self.shape[work.window + 1 :] for chunk in window]
        places = [
            (w, p) for w, window in enumerate(self.shape) for p in range(len(window)) if w > work.window
        ]
        known = 0
        for chunk, place in zip(behind, places, strict=True):
            if not chunk.known and place not in self.learnt:
                assert known >= -stop % assignment.step_rows, "the last step's rows are counted"
                return
            known += chunk.rows

    def drop(self, drop: Drop) -> None:
        self.drops.append(drop)
        key = (drop.epoch, drop.window)
        if drop.slices is None:
            attempt = self.windows.pop(key, Attempt(-1))
            self.stale.update(attempt.running)
            needed = any(self.needs(reader, key) for reader in self.readers.values())
            if not needed:
                assert not drop.rebuild
            return
        for reader in self.readers.values():
            if self.needs(reader, key):
                at = reader.slice if (reader.epoch, reader.window) == key else 0
                assert max(drop.slices) < at, "a slice that a shard needs is released"
        if key in self.windows:
            assert not self.windows[key].gone.intersection(drop.slices), "a slice is dropped once"
            self.windows[key].gone.update(drop.slices)

    def needs(self, reader: Reader, key: tuple[int, int]) -> bool:
        # an epoch on demand needs nothing before it is requested
        idle = reader.window is None and not self.limits.crosses_epochs
        return not reader.closed and not idle and (reader.epoch, reader.window or 0) <= key

    def finish(self, work: Work) -> None:
        key = (work.epoch, work.window)
        chunk = self.shape[work.window][work.part]
        last = work.stage == 1 or self.stages_of(work) == 1
        slices = self.limits.slices if last else 1
        # slices are about even; their sum is what the part takes
        sizes = tuple(
            chunk.size_bytes * (i + 1) // slices - chunk.size_bytes * i // slices for i in range(slices)
        )
        self.learnt[work.window, work.part] = chunk.rows
        if work in self.stale:
            del self.stale[work]
        else:
            attempt = self.windows[key]
            del attempt.running[work]
            attempt.tables.pop(work.part, None)
            if last:
                attempt.finished += 1
                for number, size in enumerate(sizes):
                    attempt.slices[number] = attempt.slices.get(number, 0) + size
                window = self.scheduler.window(*key)
                assert window is not None
                attempt.gone.update(range(window.first_kept))
            else:
                attempt.tables[work.part] = sizes[0]
        self.handle(Finished(work, chunk.rows, sizes))

    def stages_of(self, work: Work) -> int:
        if not self.unknown:
            return 1
        if work in self.stale:
            return 2 if work.stage == 0 else 1
        return len(self.scheduler.epochs.counts(work.epoch).shape.stages)

    # --- shards

    def open(self, shard: int, batch_rows: int) -> None:
        reader = self.readers[shard]
        assert not reader.closed
        assert reader.window is None
        opened = self.scheduler.epochs.opened_assignment(reader.epoch)
        assignment = opened or ShardAssignment(len(self.readers), batch_rows)
        reader.window, reader.slice, reader.fetched = 0, 0, False
        self.handle(Opened(shard, Place(reader.epoch, 0), assignment))

    def can_open(self, shard: int) -> bool:
        reader = self.readers[shard]
        more = self.epochs is None or reader.epoch < self.epochs
        return not reader.closed and reader.window is None and more

    def waits(self, shard: int) -> bool:
        """Whether the shard's next rows are not ready."""
        reader = self.readers[shard]
        reading = not reader.closed and reader.window is not None and reader.window < len(self.shape)
        return reading and not reader.fetched and not self.is_ready(reader)

    def is_ready(self, reader: Reader) -> bool:
        assert reader.window is not None
        parts = self.shape[reader.window]
        attempt = self.windows.get((reader.epoch, reader.window))
        return not parts or (attempt is not None and attempt.finished == len(parts))

    def step(self, shard: int) -> bool:
        """Let a shard take one slice, or end its epoch; returns whether it could."""
        reader = self.readers[shard]
        if reader.closed or reader.window is None:
            return False
        if reader.window >= len(self.shape):
            self.leave(shard)
            return True
        if not reader.fetched:
            if not self.is_ready(reader):
                return False
            reader.fetched = True
        reader.slice += 1
        if reader.slice >= self.limits.slices:
            reader.window, reader.slice, reader.fetched = reader.window + 1, 0, False
        self.handle(Acknowledged(shard, Place(reader.epoch, reader.window, reader.slice)))
        return True

    def leave(self, shard: int) -> None:
        reader = self.readers[shard]
        reader.epoch, reader.window, reader.slice, reader.fetched = reader.epoch + 1, None, 0, False
        self.handle(Acknowledged(shard, Place(reader.epoch, 0)))

    def close(self, shard: int) -> None:
        self.readers[shard].closed = True
        self.handle(Closed(shard))

    def pass_time(self, seconds: float, awake: set[int] | None = None) -> None:
        """Let time pass; shards that are awake and waiting send heartbeats."""
        self.now += seconds
        for shard in self.readers if awake is None else awake:
            if self.waits(shard):
                self.handle(Heartbeat(shard))
        self.handle(Tick())

    @property
    def running(self) -> list[Work]:
        """All tasks that run, late ones included."""
        return [*self.stale, *(work for attempt in self.windows.values() for work in attempt.running)]

    @property
    def held_bytes(self) -> int:
        return sum(attempt.held_bytes for attempt in self.windows.values()) + sum(self.stale.values())

    # --- to the end

    def read_all(self, awake: set[int], *, batch_rows: int = 2, epochs: int = 3) -> int:
        """Let some shards read all that is left, the others keep silent; returns the rounds it took.

        Everybody gets a turn in each round, so a bounded number of rounds suffices unless
        somebody waits for what never comes.
        """
        parts = sum(len(window) for window in self.shape) + len(self.shape) + 1
        stop = epochs if self.epochs is None else self.epochs
        bound = 40 + 3 * stop * parts * len(self.readers) * (6 + int(self.limits.heartbeat_timeout_seconds))
        for number in range(bound):
            left = [
                shard
                for shard in awake
                if not self.readers[shard].closed and self.readers[shard].epoch < stop
            ]
            if not left:
                return number
            for work in self.running:
                self.finish(work)
            for shard in left:
                if self.can_open(shard):
                    self.open(shard, batch_rows)
                while self.step(shard):
                    pass
            self.pass_time(1.0, set(left))
        raise AssertionError(f"shards {left} wait forever: {self.readers}, held {self.windows}")

    def close_all(self) -> None:
        """Close every shard; nothing may be left."""
        for shard, reader in self.readers.items():
            if not reader.closed:
                self.close(shard)
        for work in self.running:
            self.finish(work)
        assert self.scheduler.done
        assert not self.windows
        assert self.scheduler.held_bytes == 0
        assert self.scheduler._totals == WindowTotals()
        assert self.scheduler.running == 0
