"""Random scenarios: a small program, a cluster, and the faults to inject."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.simulation.world import Faults
from windrow.core.source import BlockAddress, BlockTable
from windrow.pipeline.coordinator.skipped_blocks import MAX_BLOCKS
from windrow.pipeline.plan.held_windows import largest_window
from windrow.pipeline.plan.job import Job, Options, Resources
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.shard_assignment import Equal

MiB = 2**20
# the share of scenarios with corrupt blocks, and with rows far larger than estimated
_CORRUPT = 0.2
_GROWING = 0.15


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset of blocks that have row counts but no data."""

    stored: tuple[int, ...]
    # fewer if rows are filtered
    delivered: tuple[int, ...]
    row_bytes: int
    known: bool
    exact: bool
    corrupt: frozenset[int] = frozenset()
    # by which the rows of each block exceed their estimated size
    growths: tuple[float, ...] | None = None
    # what a program asks of a source of files
    schema: ClassVar[Any] = SimpleNamespace(names=[])
    null_counts: Any = None
    reader: Any = None

    @cached_property
    def blocks(self) -> BlockTable:
        rows = np.array(self.stored, dtype=np.int64)
        sizes = rows * self.row_bytes
        return BlockTable(rows, sizes, sizes, self.known, self.exact)

    @cached_property
    def firsts(self) -> list[int]:
        """Number of each block's first row among all delivered rows; the last entry is their total."""
        return [0, *np.cumsum(np.array(self.delivered, dtype=np.int64)).tolist()]

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        return tuple(BlockAddress(f"block {block}", block) for block in blocks)


@dataclass(frozen=True)
class Split:
    shards: int
    batch_rows: int
    equal: Equal
    drop_last: bool
    lockstep: bool
    step_seconds: float
    # when all trainers end to resume as another number
    resize_at: float | None


@dataclass(frozen=True)
class Scenario:
    job: Job
    dataset: Dataset
    part_bytes: int
    nodes: tuple[int, ...]
    task_seconds: float
    # output bytes of tasks over their estimate, and the memory limit over what the largest window needs
    growth: float
    memory_factor: float
    small_windows_bytes: int
    faults: Faults

    def program(self, split: Split) -> Program:
        members = tuple(range(split.shards))
        return Program(self.job, split.shards, split.equal, members, self.part_bytes)

    def output_bytes(self, program: Program) -> NDArray[np.int64]:
        """(blocks,) bytes that each block's map output takes."""
        growths = np.array(self.dataset.growths or [max(1.0, self.growth)] * len(program.estimate.held_bytes))
        return np.ceil(program.estimate.held_bytes * growths).astype(np.int64)

    def resources(self, program: Program) -> Resources:
        nodes = len(self.nodes)
        copies = 2 - 1 / nodes
        least = int(largest_window(program, self.output_bytes(program)) * copies) + (self.growth > 1)
        return Resources(
            "simulated",
            sum(self.nodes),
            int(least * self.memory_factor),
            False,
            copies,
            nodes=nodes,
            small_windows_bytes=self.small_windows_bytes,
        )


def draw_scenario(rng: random.Random) -> Scenario:
    count = rng.choice([1, 2, 3, 4, 6, 8, 10])
    stored = tuple(rng.choice([0, 1, 2, 3, 5, 8, 13]) for _ in range(count))
    known = rng.random() < 0.6
    delivered = stored if known else tuple(rng.choice([0, rows, rng.randint(0, rows)]) for rows in stored)
    row_bytes = rng.choice([1024, MiB, 2 * MiB, 2 * MiB, 4 * MiB, 4 * MiB])
    growth = rng.choice([1.0, 1.0, 1.0, 0.8, 1.2])
    corrupt = _draw_corrupt(stored, row_bytes)
    growths = _draw_growths(stored, row_bytes)
    if growths is not None:
        growth = max(growths)
    delivered = tuple(0 if block in corrupt else rows for block, rows in enumerate(delivered))
    dataset = Dataset(stored, delivered, row_bytes, known, growth == 1, corrupt, growths)
    total = max(1, sum(stored)) * row_bytes
    cut = rng.choice(
        [
            WindowCut(),
            WindowCut(blocks_per_window=1),
            WindowCut(blocks_per_window=rng.randint(1, 4)),
            WindowCut(bytes_per_window=max(1, total // rng.randint(1, 5))),
        ]
    )
    job = Job(
        source=dataset,  # type: ignore[arg-type]  # it has what a program asks of a source
        cut=cut,
        epochs=rng.choice([1, 2, 2, 3]),
        seed=rng.choice([None, 0, rng.getrandbits(32)]),
        options=Options(
            prefetch_windows=rng.choice([0, 1, 1, 2]),
            cache=rng.choice([None, "disk", "memory"]),
            on_error="skip" if corrupt else "raise",
        ),
        on_demand=rng.random() < 0.1,
    )
    return Scenario(
        job=job,
        dataset=dataset,
        part_bytes=row_bytes * rng.choice([1, 4, 10, 40]),
        nodes=tuple(rng.randint(1, 2) for _ in range(rng.randint(1, 3))),
        task_seconds=rng.choice([0.05, 0.3, 1.0]),
        growth=growth,
        memory_factor=rng.choice([1.0, 1.0, 1.2, 1.7, 2.5, 10.0]),
        small_windows_bytes=_draw_small_windows(stored, row_bytes),
        faults=_draw_faults(rng),
    )


def _draw_corrupt(stored: tuple[int, ...], row_bytes: int) -> frozenset[int]:
    """Draw corrupt blocks from a separate generator, so that the other draws of a seed stay the same."""
    rng = random.Random(f"{stored} {row_bytes}")
    if rng.random() >= _CORRUPT:
        return frozenset()
    blocks = range(len(stored))
    return frozenset(rng.sample(blocks, min(len(blocks), rng.choice([1, 1, 2, 3, MAX_BLOCKS]))))


def _draw_growths(stored: tuple[int, ...], row_bytes: int) -> tuple[float, ...] | None:
    """Draw by how much the rows of each block exceed their estimate, from a separate generator too."""
    rng = random.Random(f"growing rows of {stored} {row_bytes}")
    if rng.random() >= _GROWING:
        return None
    times = rng.choice([3.0, 40.0, 1000.0])
    few = rng.choice([0.0, 0.3, 0.8])
    return tuple(1.0 if rng.random() < few else times * rng.uniform(0.5, 1.0) for _ in stored)


def _draw_small_windows(stored: tuple[int, ...], row_bytes: int) -> int:
    """Draw which windows count as small, from a separate generator too."""
    return random.Random(f"small windows of {stored} {row_bytes}").choice([0, MiB, 2**30])


def _draw_faults(rng: random.Random) -> Faults:
    def some(share: float, most: float) -> float:
        return most * rng.random() if rng.random() < share else 0.0

    def times(share: float) -> tuple[float, ...]:
        if rng.random() >= share:
            return ()
        return tuple(8 * rng.random() for _ in range(rng.randint(1, 3)))

    return Faults(
        late=some(0.5, 0.1),
        late_seconds=rng.choice([0.5, 3.0]),
        crash=some(0.3, 0.4),
        object_loss=some(0.3, 0.2),
        unheard=some(0.2, 0.1),
        fail=some(0.1, 0.05),
        restarts=times(0.4),
        node_losses=times(0.3),
        stall=some(0.4, 0.1),
        stall_seconds=rng.choice([3.0, 8.0, 20.0]),
        die=some(0.3, 0.05),
        zombie=some(0.25, 0.06),
        close=some(0.1, 0.03),
        early_stop=some(0.3, 0.1),
        disk_full=some(0.5, 0.2),
        attach_seconds=rng.choice([0.0, 0.0, 1.0, 10.0]),
    )


def draw_split(rng: random.Random) -> Split:
    return Split(
        shards=rng.choice([1, 2, 2, 3, 4]),
        batch_rows=rng.choice([1, 2, 3, 5, 7]),
        equal=rng.choice([True, False, False, "pad"]),
        drop_last=rng.random() < 0.15,
        lockstep=rng.random() < 0.3,
        step_seconds=rng.choice([0.0, 0.01, 0.2]),
        resize_at=rng.expovariate(0.15) if rng.random() < 0.35 else None,
    )
