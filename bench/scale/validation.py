"""Validation of the simulator: predicted over measured epoch times on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

from bench.scale.cluster import Cluster, Costs
from bench.scale.run import simulate
from bench.system.console import ProgressLine
from bench.system.free_cores import FreeCores, wait_until_idle
from bench.system.machine import count_cores, read_memory_bytes
from bench.system.processes import run_alone
from bench.throughput.launch import run_rounds
from bench.throughput.options import BenchConfig, find_data
from bench.training.facts import Facts, read_facts
from windrow.io.catalog.file_source import open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.epoch_plan import WindowCut

_EPOCHS = {"windrow-threads": 8, "windrow-ray": 14}
_TRAINERS = {"windrow-threads": 1, "windrow-ray": 2}
_MANY_WINDOWS, _IDLE_SECONDS = 10, 60.0
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
        wait_until_idle(_IDLE_SECONDS)
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
    with FreeCores(count_cores()) as left:
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
