"""What is run: a small random program, a cluster, and how things go wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.source import BlockAddress, BlockTable
from windrow.pipeline.coordinator.skipped_blocks import MAX_BLOCKS
from windrow.pipeline.executors.base import Resources
from windrow.pipeline.plan.job import Job, Options
from windrow.pipeline.plan.memory_budget import largest_window
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.shard_assignment import Equal

__all__ = ["Dataset", "Faults", "Scenario", "Split", "draw_scenario", "draw_split"]

MiB = 2**20
# the share of scenarios with corrupt blocks, and of those whose rows are far larger than was estimated
_CORRUPT = 0.2
_GROWING = 0.15


@dataclass(frozen=True, eq=False)
class Dataset:
    """Blocks of which only the numbers of rows exist.

    Attributes
    ----------
    stored
        Rows of each block as stored.
    kept
        Rows that it really delivers: fewer behind a filter.
    row_bytes
        What a row is said to take.
    corrupt
        The blocks that cannot be read, and so deliver nothing.
    growths
        Factor by which the rows of each block exceed their estimated size; None: they match it.
    """

    stored: tuple[int, ...]
    kept: tuple[int, ...]
    row_bytes: int
    known: bool
    exact: bool
    corrupt: frozenset[int] = frozenset()
    growths: tuple[float, ...] | None = None

    @cached_property
    def blocks(self) -> BlockTable:
        rows = np.array(self.stored, dtype=np.int64)
        sizes = rows * self.row_bytes
        return BlockTable(rows, sizes, sizes, self.known, self.exact)

    @cached_property
    def firsts(self) -> list[int]:
        """The number of each block's first row, among all that are delivered."""
        return [0, *np.cumsum(np.array(self.kept, dtype=np.int64)).tolist()]

    @property
    def schema(self) -> Any:
        return SimpleNamespace(names=[])

    null_counts: Any = None
    reader: Any = None

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        return tuple(BlockAddress(f"block {block}", block) for block in blocks)


@dataclass(frozen=True)
class Faults:
    """How things go wrong; shares are probabilities of each occasion.

    Attributes
    ----------
    late, late_seconds
        Messages that take long, and how long at most.
    crash
        Tasks that die and are run again.
    vanish
        Objects that are gone when they are asked for.
    unheard
        Transfers of which nothing is heard.
    fail
        Tasks whose error ends the run for all shards, which then restart.
    restarts, leaves
        Seconds at which the coordinator dies, and a node.
    stall, die, zombie, close, leave
        At each step of a trainer: it does nothing for a while; it dies and comes back;
        it is taken for dead and replaced, but lives; it reads no more; it leaves the epoch early, and
        resumes from its state or goes on with the next epoch.
    full
        Blocks that no longer fit on their node's disk, which is then full for good.
    attach_seconds
        Within how long trainers begin.
    """

    late: float = 0.0
    late_seconds: float = 0.0
    crash: float = 0.0
    vanish: float = 0.0
    unheard: float = 0.0
    fail: float = 0.0
    restarts: tuple[float, ...] = ()
    leaves: tuple[float, ...] = ()
    stall: float = 0.0
    stall_seconds: float = 0.0
    die: float = 0.0
    zombie: float = 0.0
    close: float = 0.0
    leave: float = 0.0
    full: float = 0.0
    attach_seconds: float = 0.0


@dataclass(frozen=True)
class Split:
    """How one run divides the stream.

    Attributes
    ----------
    resize_at
        Seconds at which all trainers end, to go on as another number; None: never.
    """

    shards: int
    batch_rows: int
    equal: Equal
    drop_last: bool
    in_step: bool
    step_seconds: float
    resize_at: float | None


@dataclass(frozen=True)
class Scenario:
    """A dataset, what is asked of it, and the cluster.

    Attributes
    ----------
    growth
        How many times what was expected tasks put out, over all blocks.
    room
        What windows may take, over what the largest is expected to.
    small_windows_bytes
        Windows that take no more together are prepared farther ahead.
    """

    job: Job
    dataset: Dataset
    part_bytes: int
    nodes: tuple[int, ...]
    task_seconds: float
    growth: float
    room: float
    small_windows_bytes: int
    faults: Faults

    def program(self, split: Split) -> Program:
        """The program of a run."""
        members = tuple(range(split.shards))
        return Program(self.job, split.shards, split.equal, members, self.part_bytes)

    def output_bytes(self, program: Program) -> NDArray[np.int64]:
        """(blocks,) what each block puts out."""
        growths = np.array(self.dataset.growths or [max(1.0, self.growth)] * len(program.held_bytes))
        return np.ceil(program.held_bytes * growths).astype(np.int64)

    def resources(self, program: Program) -> Resources:
        """What a run has."""
        nodes = len(self.nodes)
        copies = 2 - 1 / nodes
        least = int(largest_window(program, self.output_bytes(program)) * copies) + (self.growth > 1)
        return Resources(
            "simulated",
            sum(self.nodes),
            int(least * self.room),
            False,
            copies,
            nodes=nodes,
            small_windows_bytes=self.small_windows_bytes,
        )


def draw_scenario(chance: random.Random) -> Scenario:
    """Draw what is run."""
    count = chance.choice([1, 2, 3, 4, 6, 8, 10])
    stored = tuple(chance.choice([0, 1, 2, 3, 5, 8, 13]) for _ in range(count))
    known = chance.random() < 0.6
    kept = stored if known else tuple(chance.choice([0, rows, chance.randint(0, rows)]) for rows in stored)
    row_bytes = chance.choice([1024, MiB, 2 * MiB, 2 * MiB, 4 * MiB, 4 * MiB])
    growth = chance.choice([1.0, 1.0, 1.0, 0.8, 1.2])
    corrupt = _draw_corrupt(stored, row_bytes)
    growths = _draw_growths(stored, row_bytes)
    if growths is not None:
        growth = max(growths)
    kept = tuple(0 if block in corrupt else rows for block, rows in enumerate(kept))
    dataset = Dataset(stored, kept, row_bytes, known, growth == 1, corrupt, growths)
    total = max(1, sum(stored)) * row_bytes
    cut = chance.choice(
        [
            WindowCut(),
            WindowCut(blocks_per_window=1),
            WindowCut(blocks_per_window=chance.randint(1, 4)),
            WindowCut(bytes_per_window=max(1, total // chance.randint(1, 5))),
        ]
    )
    job = Job(
        source=dataset,  # type: ignore[arg-type]
        cut=cut,
        epochs=chance.choice([1, 2, 2, 3]),
        seed=chance.choice([None, 0, chance.getrandbits(32)]),
        options=Options(
            prefetch_windows=chance.choice([0, 1, 1, 2]),
            cache=chance.choice([None, "disk", "memory"]),
            on_error="skip" if corrupt else "raise",
        ),
        on_demand=chance.random() < 0.1,
    )
    return Scenario(
        job=job,
        dataset=dataset,
        part_bytes=row_bytes * chance.choice([1, 4, 10, 40]),
        nodes=tuple(chance.randint(1, 2) for _ in range(chance.randint(1, 3))),
        task_seconds=chance.choice([0.05, 0.3, 1.0]),
        growth=growth,
        room=chance.choice([1.0, 1.0, 1.2, 1.7, 2.5, 10.0]),
        small_windows_bytes=_draw_small_windows(stored, row_bytes),
        faults=_draw_faults(chance),
    )


def _draw_corrupt(stored: tuple[int, ...], row_bytes: int) -> frozenset[int]:
    """Draw blocks that cannot be read, by a chance of their own: what else is drawn stays the same."""
    chance = random.Random(f"{stored} {row_bytes}")
    if chance.random() >= _CORRUPT:
        return frozenset()
    blocks = range(len(stored))
    return frozenset(chance.sample(blocks, min(len(blocks), chance.choice([1, 1, 2, 3, MAX_BLOCKS]))))


def _draw_growths(stored: tuple[int, ...], row_bytes: int) -> tuple[float, ...] | None:
    """Draw how much larger the rows of each block turn out, by a chance of its own as well."""
    chance = random.Random(f"growing rows of {stored} {row_bytes}")
    if chance.random() >= _GROWING:
        return None
    times = chance.choice([3.0, 40.0, 1000.0])
    few = chance.choice([0.0, 0.3, 0.8])
    return tuple(1.0 if chance.random() < few else times * chance.uniform(0.5, 1.0) for _ in stored)


def _draw_small_windows(stored: tuple[int, ...], row_bytes: int) -> int:
    """Draw what windows count as small, by a chance of its own as well."""
    return random.Random(f"small windows of {stored} {row_bytes}").choice([0, MiB, 2**30])


def _draw_faults(chance: random.Random) -> Faults:
    def some(share: float, most: float) -> float:
        return most * chance.random() if chance.random() < share else 0.0

    def times(share: float) -> tuple[float, ...]:
        if chance.random() >= share:
            return ()
        return tuple(8 * chance.random() for _ in range(chance.randint(1, 3)))

    return Faults(
        late=some(0.5, 0.1),
        late_seconds=chance.choice([0.5, 3.0]),
        crash=some(0.3, 0.4),
        vanish=some(0.3, 0.2),
        unheard=some(0.2, 0.1),
        fail=some(0.1, 0.05),
        restarts=times(0.4),
        leaves=times(0.3),
        stall=some(0.4, 0.1),
        stall_seconds=chance.choice([3.0, 8.0, 20.0]),
        die=some(0.3, 0.05),
        zombie=some(0.25, 0.06),
        close=some(0.1, 0.03),
        leave=some(0.3, 0.1),
        full=some(0.5, 0.2),
        attach_seconds=chance.choice([0.0, 0.0, 1.0, 10.0]),
    )


def draw_split(chance: random.Random) -> Split:
    """Draw how a run divides the stream."""
    return Split(
        shards=chance.choice([1, 2, 2, 3, 4]),
        batch_rows=chance.choice([1, 2, 3, 5, 7]),
        equal=chance.choice([True, False, False, "pad"]),
        drop_last=chance.random() < 0.15,
        in_step=chance.random() < 0.3,
        step_seconds=chance.choice([0.0, 0.01, 0.2]),
        resize_at=chance.expovariate(0.15) if chance.random() < 0.35 else None,
    )
