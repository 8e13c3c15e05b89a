"""``python -m bench mesh``: epochs of shards with and without replicas, in turns."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import windrow
from bench.system.console import ProgressLine, add_data, add_turns, print_table, read_counts
from bench.system.machine import print_machine
from bench.system.processes import MemorySampler, ProcessTree
from bench.system.ray_cluster import start_ray
from bench.throughput.options import BenchConfig, find_data
from windrow.pipeline.plan.program import RUN_BYTES

_MOST_TASKS = 1.02
# with two replicas of each shard; more of them than cores have to share these
_MOST_SECONDS = 1.3
_SHARDS, _WINDOWS = 2, 8
_BATCH_ROWS = 16_384
_STORE_BYTES = 2 * 2**30
# the first epoch pays for processes that start and memory that is touched first
_WARM = 1
_IDLE_BYTES = 10**6
# that trainers keep their last batches, so that memory is sampled however short their epochs are
_HELD_SECONDS = 1.0
_MEMORY = ("memory MB", "of data", "more", "explained MB")
_HEADS = ("trainers", "epoch s", "of plain", "tasks", "of plain", *_MEMORY)
_NOTE = (
    "epoch s: median of all epochs after the first of each run, until the last trainer has ended it. memory MB: the "
    "peak of all processes after the first epoch, median of the runs; of data: without what the same processes take "
    "on 1 MB; explained: the bound of explain()."
)


@dataclass(frozen=True)
class _Run:
    """One run: seconds of each epoch, the number of tasks, and the peak of memory beside that of `explain()`."""

    seconds: Sequence[float]
    tasks: int
    memory_bytes: int
    explained_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "1.4GB")
    parser.add_argument(
        "--replicas", type=read_counts, default="2,4", help="replicas of each shard, one or more numbers"
    )
    add_turns(parser, rounds=3, epochs=5)


def run(options: argparse.Namespace) -> int:
    """Measure and print the table; the exit status is 1 if replicas cost more time, tasks or memory than they may."""
    line, counts = ProgressLine(), [1, *options.replicas]
    paths, idle_paths = (
        find_data(BenchConfig(size_bytes=size, folder=options.folder))
        for size in (options.size_bytes, _IDLE_BYTES)
    )
    print_machine()
    start_ray(_STORE_BYTES)
    runs: dict[int, list[_Run]] = {count: [] for count in counts}
    idle = {count: _measure(idle_paths, _IDLE_BYTES // _WINDOWS, count, 2) for count in counts}
    for number in range(options.rounds):
        for count in counts:
            line.start(f"round {number + 1}: {_SHARDS} shards, {count} of each")
            run = _measure(paths, options.size_bytes // _WINDOWS, count, options.epochs)
            runs[count].append(run)
            line.finish(f"{statistics.median(run.seconds):.2f} s")
    rows, is_met = [], True
    base = _Medians(runs[1], idle[1].memory_bytes)
    for count, found in runs.items():
        of = _Medians(found, idle[count].memory_bytes)
        more = of.data_bytes - base.data_bytes
        is_met = is_met and (count > 2 or of.seconds <= _MOST_SECONDS * base.seconds)
        is_met = is_met and of.tasks <= _MOST_TASKS * base.tasks
        is_met = is_met and more <= _SHARDS * RUN_BYTES and of.data_bytes <= of.explained_bytes
        speed = f"{of.seconds:.2f}", f"{of.seconds / base.seconds:.2f}"
        tasks = f"{of.tasks:,.0f}", f"{of.tasks / base.tasks:.3f}"
        memory = (f"{size / 1e6:,.0f}" for size in (of.memory_bytes, of.data_bytes, more, of.explained_bytes))
        rows.append((f"{_SHARDS} x {count}", *speed, *tasks, *memory))
    print_table(_HEADS, rows, ("trainers",), _NOTE)
    return int(not is_met)


class _Medians:
    def __init__(self, runs: Sequence[_Run], idle_bytes: int) -> None:
        self.seconds = statistics.median(second for run in runs for second in run.seconds)
        self.tasks = statistics.median(run.tasks for run in runs)
        self.memory_bytes = statistics.median(run.memory_bytes for run in runs)
        self.data_bytes = self.memory_bytes - idle_bytes
        self.explained_bytes = statistics.median(run.explained_bytes for run in runs)


def _measure(paths: Sequence[str], window_bytes: int, replicas: int, epochs: int) -> _Run:
    import ray

    dataset = windrow.read_parquet(list(paths)).window(bytes_per_window=window_bytes)
    pipe = dataset.repeat(epochs).random_shuffle_each_window(seed=7).options(executor="ray", progress=False)
    explained = pipe.explain(_SHARDS, equal=True, replicas=replicas, batch_size=_BATCH_ROWS)
    split = pipe.split(_SHARDS, equal=True, replicas=replicas)
    actor: Any = ray.remote(num_cpus=0)(_Trainer)
    trainers = [[actor.remote() for _ in range(replicas)] for _ in range(_SHARDS)]
    with MemorySampler(ProcessTree(os.getpid())) as sampler:
        reading = [
            trainer.read.remote(shard)
            for of_shard, readers in zip(split, trainers, strict=True)
            for shard, trainer in zip(of_shard, readers, strict=True)
        ]
        ends = [max(of_epoch) for of_epoch in zip(*ray.get(reading), strict=True)]
    return _Run(
        seconds=[stop - start for start, stop in pairwise(ends[_WARM - 1 :])],
        tasks=split[0][0].stats().run.tasks,
        memory_bytes=sampler.peak(ends[_WARM - 1], ends[-1] + _HELD_SECONDS) or 0,
        explained_bytes=explained.budget.total_bytes,
    )


class _Trainer:
    """Reads a shard; returns when it has ended each epoch."""

    def read(self, shard: Any) -> list[float]:
        ends = []
        for epoch in shard.iter_epochs():
            for _ in epoch.iter_torch_batches(batch_size=_BATCH_ROWS):
                pass
            ends.append(time.monotonic())
        time.sleep(_HELD_SECONDS)
        shard.close()
        return ends
