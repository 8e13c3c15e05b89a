"""Validation of the simulator: predicted over measured epoch times on this machine."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

from bench.scale.cluster import Cluster, Costs
from bench.scale.run import simulate
from bench.system.console import ProgressLine
from bench.system.machine import count_cores, read_memory_bytes
from bench.system.processes import list_tree, read_cpu_seconds, run_alone
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, find_data
from bench.training.facts import Facts, read_facts
from windrow.io.catalog.file_source import open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.epoch_plan import WindowCut

_EPOCHS = {"windrow-threads": 8, "windrow-ray": 14}
_TRAINERS = {"windrow-threads": 1, "windrow-ray": 2}
_MANY_WINDOWS = 10
# how long to wait for a machine of which others use less than a share
_IDLE_SECONDS, _INTERVAL_SECONDS, _QUIET_SHARE = 60.0, 1.0, 0.08
_SAMPLE_SECONDS = 0.2
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_STORE_SHARE = 0.3


@dataclass(frozen=True)
class Ratio:
    """Predicted and measured seconds of a steady epoch, with the cores that other processes left free."""

    system: str
    windows: int
    predicted: float
    measured: float
    cores: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


def measure_costs(system: str, paths: Sequence[str], base: Costs) -> Costs:
    """Measure the unit costs of one executor on this machine, in a separate process."""
    if system == "windrow-threads":
        return replace(base, **run_alone("bench.scale.thread_costs", list(paths)))
    return replace(base, **run_alone("bench.scale.worker_costs", (list(paths), _TRAINERS[system])))


def measure_ray_costs(base: Costs) -> Costs:
    return replace(base, **run_alone("bench.scale.ray_costs", None))


def validate_here(config: BenchConfig, line: ProgressLine, ray_costs: Costs) -> Iterator[Ratio]:
    """Measure and predict runs on this machine, with costs and runs measured in turn while it is otherwise idle."""
    paths = find_data(config, line)
    facts = read_facts(paths, count_cores())
    for system, windows in product(config.systems, (1, _MANY_WINDOWS)):
        _wait_until_idle()
        before = measure_costs(system, paths, ray_costs)
        measured, cores = _measure(config, system, windows, facts, line)
        costs = _mean(before, measure_costs(system, paths, ray_costs))
        predicted = predict_here(system, windows, paths, costs, cores)
        yield Ratio(system, windows, predicted, measured, cores)


def _mean(one: Costs, other: Costs) -> Costs:
    """Mean of the costs before and after a run, because the speed of the machine drifts meanwhile."""
    names = [field.name for field in fields(Costs)]
    return Costs(**{name: (getattr(one, name) + getattr(other, name)) / 2 for name in names})


def _measure(
    config: BenchConfig, system: str, windows: int, facts: Facts, line: ProgressLine
) -> tuple[float, float]:
    """Seconds of a steady-state epoch, and the cores that other processes left free during these epochs."""
    window = None if windows == 1 else str(-(-facts.decoded_bytes // windows)) + "B"
    one = replace(
        config, systems=(system,), window=window, epochs=_EPOCHS[system], trainers=_TRAINERS[system], rounds=1
    )
    with _FreeCores() as left:
        (result,) = run_rounds(one, facts, line)
    if result.error is not None:
        raise ValueError(f"{system} failed: {result.error}")
    # the first epochs pay for first-touch page faults
    late = result.epochs[len(result.epochs) // 3 :]
    cores = statistics.mean(left.during(epoch.start, epoch.end) for epoch in late)
    return statistics.median(epoch.seconds for epoch in late), min(cores, count_cores())


def predict_here(system: str, windows: int, paths: Sequence[str], costs: Costs, cores: float) -> float:
    """Simulated seconds of a steady-state epoch on this machine with ``cores`` free cores."""
    source = open_files(list(paths), ParquetFormat())
    total = int(source.blocks.decoded_bytes.sum())
    cut = WindowCut() if windows == 1 else WindowCut(None, -(-total // windows))
    threads, workers = system == "windrow-threads", count_cores()
    cluster = Cluster(
        nodes=1,
        cpus=workers,
        cpu_speed=cores / workers,
        memory_bytes=read_memory_bytes(),
        store_share=_STORE_SHARE,
        connections=0,
        trainers=_TRAINERS[system],
        placers=workers if threads else max(1, min(2, workers // _TRAINERS[system])),
        threads=threads,
    )
    outcome = simulate(Job(source, cut, 5, 7), cluster, costs, batch_rows=65_536, epochs=4, grain=None)
    assert outcome.epoch_seconds is not None, "all epochs were simulated"
    return outcome.epoch_seconds


def _wait_until_idle() -> None:
    until, share = time.monotonic() + _IDLE_SECONDS, 1.0
    while share > _QUIET_SHARE and time.monotonic() < until:
        busy, total = _read_core_seconds()
        time.sleep(_INTERVAL_SECONDS)
        busy_now, total_now = _read_core_seconds()
        share = (busy_now - busy) / max(_TICK_SECONDS, total_now - total)


class _FreeCores:
    """Samples the cores that are left free by all processes but this one and those that it has started."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._samples: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _FreeCores:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def during(self, start: float, end: float) -> float:
        """Mean number of free cores between two times of the monotonic clock."""
        before = max((sample for sample in self._samples if sample[0] <= start), default=self._samples[0])
        after = min((sample for sample in self._samples if sample[0] >= end), default=self._samples[-1])
        seconds = max(_SAMPLE_SECONDS, after[0] - before[0])
        return max(0.1, count_cores() - (after[1] - before[1]) / seconds)

    def _watch(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            for process in list_tree(os.getpid()):
                # nothing more is known of one that has ended
                self._used[process] = max(read_cpu_seconds(process), self._used.get(process, 0.0))
            busy, _ = _read_core_seconds()
            self._samples.append((time.monotonic(), busy - sum(self._used.values())))


def _read_core_seconds() -> tuple[float, float]:
    """Seconds in which cores were busy since the start of the machine, and those of all cores."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) * _TICK_SECONDS, sum(fields) * _TICK_SECONDS
