"""``python -m bench netns``: ranks of torchrun on nodes in network namespaces, over links that are limited and fail."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.netns.network import Link, Network, open_network, why_not
from bench.netns.rank import digest_epoch, make_pipe, select_columns
from bench.scale.cluster import GBIT, Cluster, Costs
from bench.scale.run import Outcome, simulate
from bench.system.console import ProgressLine, add_data, print_table, read_count
from bench.system.machine import count_cores, print_machine, read_memory_bytes
from bench.throughput.options import BenchConfig, find_data
from windrow.core.buffer_pool import BufferPool
from windrow.io.catalog.file_source import open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.pipeline.delivery.sequence_slice import Selection
from windrow.pipeline.delivery.wanted import Wanted
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.narrow_outputs import narrow_outputs
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.order.epoch_plan import WindowCut

_MOST_TRAFFIC, _MAX_ERROR = 1.05, 0.15
_JOB_SECONDS = 600.0
# of a link; the delay where the kernel has netem
_MBIT, _DELAY_SECONDS = 100.0, 0.25e-3
# Links that limit nothing: how long epochs take over them says how fast this machine is, before links are narrow.
_WIDE_MBIT, _WIDE_EPOCHS = 10_000.0, 3
_SPEED_STEPS = 4
_POLL_SECONDS = 0.2
_PORT = 29_400
_LOSS, _SLOW_SHARE = 0.05, 0.1
# the first epochs pay for processes that start and memory that is touched first
_WARM = 2
_WIDE = f"links of {_WIDE_MBIT / 1e3:g} Gbit/s"
_HEADS = ("condition", "epoch s", "MB over links", "rows", "order")


def _keep(_: Network) -> None:
    """Leave the links as they are."""


@dataclass(frozen=True)
class _Condition:
    """What happens to the links during one epoch: begun when the epoch before has ended on all ranks."""

    name: str
    begin: Callable[[Network], None] = _keep
    end: Callable[[Network], None] = _keep


class _Job:
    """One rank of torchrun on each node, in a folder to which they report their epochs."""

    def __init__(self, network: Network, folder: Path, arguments: Sequence[str]) -> None:
        self._folder, self._nodes = folder, range(len(network.addresses))
        self._deadline = time.monotonic() + _JOB_SECONDS
        self._agents: list[subprocess.Popen[bytes]] = []
        python_path = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
        for node in self._nodes:
            command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(self._nodes)}"]
            command += ["--nproc-per-node=1", f"--node-rank={node}", f"--master-addr={network.addresses[0]}"]
            command += [f"--master-port={_PORT}", "-m", "bench.netns.rank", *arguments]
            temporary = folder / f"node{node}"
            temporary.mkdir()
            environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
            environment["PYTHONPATH"] = python_path
            with (folder / f"node{node}.log").open("wb") as log:
                agent = subprocess.Popen(
                    network.command(node, command), stdout=log, stderr=log, env=environment
                )
            self._agents.append(agent)

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for agent in self._agents if kind is None else ():
                agent.wait(max(1.0, self._deadline - time.monotonic()))
        finally:
            for agent in self._agents:
                agent.kill()

    def epochs(self) -> list[list[dict[str, Any]]]:
        """What each rank has reported of each epoch."""
        ranks = []
        for rank in self._nodes:
            path = self._folder / f"{rank}.jsonl"
            text = path.read_text() if path.exists() else ""
            ranks.append([json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")])
        return ranks

    def wait_for(self, epochs: int) -> None:
        """Wait until all ranks have ended some epochs."""
        while (done := min(map(len, self.epochs()))) < epochs:
            ended = [node for node, agent in enumerate(self._agents) if agent.poll() is not None]
            if ended and min(map(len, self.epochs())) < epochs:
                log = (self._folder / f"node{ended[0]}.log").read_text()
                raise ValueError(f"node {ended[0]} has ended after {done} epochs:\n{log[-6000:]}")
            if time.monotonic() > self._deadline:
                logs = "\n".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("*.log")))
                raise ValueError(f"{done} of {epochs} epochs when the time was up:\n{logs}")
            time.sleep(_POLL_SECONDS)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "700MB")
    parser.add_argument("--epochs", type=read_count, default=3, help="epochs over undisturbed links")
    parser.add_argument(
        "--replicas", type=read_count, default=1, help="nodes that read the same shard: 1, 2 or 4"
    )
    parser.add_argument("--divide-columns", action="store_true", help="replicas select columns of their own")
    parser.add_argument("--short", action="store_true", help="two nodes, little data, one short fault")


def run(options: argparse.Namespace) -> int:
    """Run the job and compare; the exit status is 0 if order, traffic and prediction are right."""
    reason = why_not()
    if reason:
        print(f"not run: {reason}")
        return 0
    # nodes with one rank each, and seconds that a link is down
    options.nodes, options.down = 4, 30.0
    if options.short:
        options.nodes, options.size_bytes, options.epochs, options.down = 2, 30_000_000, 2, 3.0
    if options.nodes % options.replicas:
        raise ValueError(f"--replicas {options.replicas} must divide the number of nodes, {options.nodes}")
    config = BenchConfig(size_bytes=options.size_bytes, folder=options.folder)
    paths = find_data(config)
    link = Link(_MBIT * 1e6 / 8, _DELAY_SECONDS)
    conditions = _conditions(options, link)
    first_link = link if options.short else replace(link, bytes_per_second=_WIDE_MBIT * 1e6 / 8)
    expected = _expect(paths, options.nodes, options.replicas, len(conditions))
    with (
        open_network(options.nodes, first_link) as network,
        tempfile.TemporaryDirectory(prefix="wn-", dir="/tmp") as tmp,
    ):
        print_machine()
        delay = (
            f", {1e3 * _DELAY_SECONDS:g} ms" if network.has_netem else " (this kernel has no netem: no delay)"
        )
        print(f"{options.nodes} nodes, {_MBIT:g} Mbit/s{delay}")
        epochs = _run(network, paths, options, conditions, Path(tmp))
    rows = [_check(number, condition, epochs, expected) for number, condition in enumerate(conditions)]
    print_table(_HEADS, rows, ("condition", "order"))
    failures = [f"{row[0]}: {row[-1]}" for row in rows if row[-1] != "same"]
    if not options.short:
        failures += _compare_with_prediction(options, paths, epochs)
    print(*failures or ["order, traffic and prediction: met"], sep="\n")
    return int(bool(failures))


def _conditions(options: argparse.Namespace, link: Link) -> list[_Condition]:
    """The condition of each epoch: start-up, undisturbed ones, then a fault each with a quiet epoch behind it."""

    def cut(network: Network) -> None:
        network.set_up(1, up=False)
        time.sleep(options.down)
        network.set_up(1, up=True)

    def set_link(node: int, other: Link) -> Callable[[Network], None]:
        return lambda network: network.set_link(node, other)

    lossy = Link(link.bytes_per_second, link.delay_seconds, _LOSS)
    slow = Link(link.bytes_per_second * _SLOW_SHARE, link.delay_seconds)
    faults = [
        _Condition(f"a link is down for {options.down:g} s", cut),
        _Condition(f"a link loses {_LOSS:.0%} of the packets", set_link(1, lossy), set_link(1, link)),
        _Condition(f"a link of {_SLOW_SHARE:g} of the rate", set_link(1, slow), set_link(1, link)),
    ]
    quiet = [_Condition("undisturbed")] * options.epochs
    wide: list[_Condition] = []
    if not options.short:

        def narrow(network: Network) -> None:
            for node in range(options.nodes):
                network.set_link(node, link)

        wide = [_Condition(_WIDE)] * _WIDE_EPOCHS
        # what is read ahead when links become narrow serves this epoch
        quiet.insert(0, _Condition("links become narrow", narrow))
    chosen = faults[:1] if options.short else faults
    # what is read ahead when a fault begins serves an epoch; the next one is read over the faulty link
    lasting = [part for fault in chosen for part in (replace(fault, end=_keep), replace(fault, begin=_keep))]
    return [_Condition("start")] * _WARM + wide + quiet + lasting


def _expect(paths: Sequence[str], nodes: int, replicas: int, epochs: int) -> list[list[tuple[str, int]]]:
    """The digest of each rank's epochs, from one process."""
    line = ProgressLine()
    line.start("the order of one node")
    pipe = make_pipe(str(Path(paths[0]).parent), _blocks(paths), epochs).options(executor="threads")
    shards = pipe.split(nodes // replicas, equal=True)
    found = [
        [digest_epoch(epoch, _batch_rows(len(shards))) for epoch in shard.iter_epochs()] for shard in shards
    ]
    for shard in shards:
        shard.close()
    line.finish(f"{epochs} epochs")
    return [found[rank // replicas] for rank in range(nodes)]


def _blocks(paths: Sequence[str]) -> int:
    """Blocks of a window: a quarter of all."""
    return max(1, len(open_files(list(paths), ParquetFormat()).blocks.rows) // 4)


def _batch_rows(nodes: int) -> int:
    return 16_384 // nodes


def _run(
    network: Network,
    paths: Sequence[str],
    options: argparse.Namespace,
    conditions: Sequence[_Condition],
    folder: Path,
) -> list[list[dict[str, Any]]]:
    arguments = [str(Path(paths[0]).parent), str(_blocks(paths)), str(len(conditions))]
    batch_rows = _batch_rows(options.nodes // options.replicas)
    divides = "divided" if options.divide_columns else "all"
    arguments += [str(batch_rows), str(folder), str(options.replicas), divides]
    line = ProgressLine()
    line.start("starting ranks")
    with _Job(network, folder, arguments) as job:
        for number, condition in enumerate(conditions):
            job.wait_for(number)
            line.update(number / len(conditions), condition.name)
            condition.begin(network)
            job.wait_for(number + 1)
            condition.end(network)
    line.finish(f"{len(conditions)} epochs")
    return job.epochs()


def _check(
    number: int,
    condition: _Condition,
    epochs: Sequence[Sequence[dict[str, Any]]],
    expected: Sequence[Sequence[tuple[str, int]]],
) -> tuple[str, str, str, str, str]:
    found = [(rank[number]["digest"], rank[number]["rows"]) for rank in epochs]
    same = found == [rank[number] for rank in expected]
    seconds = _seconds(epochs, number)
    shown = ("-", "-")
    if seconds is not None:
        shown = f"{seconds:.2f}", f"{_received(epochs, number - 1, number) / 1e6:.1f}"
    return condition.name, *shown, f"{sum(rows for _, rows in found):,}", "same" if same else "differs"


def _seconds(epochs: Sequence[Sequence[dict[str, Any]]], number: int) -> float | None:
    if not number:
        return None
    ends = [max(rank[at]["at"] for rank in epochs) for at in (number - 1, number)]
    return float(ends[1] - ends[0])


def _received(epochs: Sequence[Sequence[dict[str, Any]]], first: int, last: int) -> float:
    return float(sum(rank[last]["rx"] - rank[first]["rx"] for rank in epochs))


def _compare_with_prediction(
    options: argparse.Namespace,
    paths: Sequence[str],
    epochs: Sequence[Sequence[dict[str, Any]]],
) -> list[str]:
    """Compare bytes over the links with the minimum, and epoch times with `bench scale`'s simulation of the cluster."""
    wide = range(_WARM, _WARM + _WIDE_EPOCHS)
    quiet = range(wide.stop + 1, wide.stop + 1 + options.epochs)
    measured, wide_seconds = (
        statistics.median(_seconds(epochs, number) or 0.0 for number in numbers) for numbers in (quiet, wide)
    )
    first, last = quiet[0] - 1, quiet[-1]
    received = _received(epochs, first, last) / options.epochs
    source = open_files(list(paths), ParquetFormat())
    program = Program(Job(source), options.nodes, True, tuple(range(options.nodes)))
    copies = float(options.replicas)
    if options.divide_columns:
        copies = sum(_share(paths[0], replica, options.replicas) for replica in range(options.replicas))
    minimum = float(program.estimate.output_bytes.sum()) * copies * (1 - 1 / options.nodes)
    traffic = received / minimum
    print(
        f"bytes over the links in an epoch: {received / 1e6:.1f} MB, {traffic:.3f} of the minimum of "
        f"{minimum / 1e6:.1f} MB (packed values and positions of the rows that another node consumes); "
        f"epoch: {measured:.2f} s"
    )
    failures = []
    if traffic > _MOST_TRAFFIC:
        failures.append(f"bytes over the links: {traffic:.3f} of the minimum, at most {_MOST_TRAFFIC}")
    if options.replicas > 1:
        # the simulation knows no replicas
        return failures
    outcome = _predict(options, source, _blocks(paths), wide_seconds)
    ratio = (outcome.epoch_seconds or 0.0) / measured
    print(
        f"predicted epoch: {outcome.epoch_seconds:.2f} s ({ratio:.2f} of the measured one), from {wide_seconds:.2f} s "
        f"over {_WIDE}; bottleneck: {outcome.bottleneck}"
    )
    if abs(ratio - 1) > _MAX_ERROR:
        failures.append(f"predicted over measured epoch: {ratio:.2f}, within {_MAX_ERROR:.0%} of 1")
    return failures


def _share(path: str, replica: int, replicas: int) -> float:
    """The share of a map output's bytes in what one of the replicas selects."""
    table = pq.ParquetFile(path).read_row_group(0)
    runs, places = np.zeros(table.num_rows, np.uint16), np.arange(table.num_rows, dtype=np.uint32)
    whole = group_rows(table, None, runs, places, np.array([0, 1]), BufferPool(0))
    wanted = Wanted.by([Selection(select_columns(table.schema.names, replica, replicas))])
    (narrowed,) = narrow_outputs(whole, wanted, copies=True)
    return float(narrowed.nbytes / whole[0].nbytes)


def _predict(options: argparse.Namespace, source: Any, blocks: int, wide_seconds: float) -> Outcome:
    """Simulate epochs over narrow links, on cores as fast as epochs over wide links say that they are."""
    job = Job(source, WindowCut(blocks, None), 7, 7)

    def run(mbit: float, speed: float) -> Outcome:
        cluster = Cluster(
            nodes=options.nodes,
            cpus=count_cores(),
            cpu_speed=speed,
            memory_bytes=read_memory_bytes() / options.nodes,
            nic_bytes=mbit / 1e3 * GBIT,
            connections=0,
            trainers=1,
            placers=1,
        )
        return simulate(job, cluster, Costs(), batch_rows=_batch_rows(options.nodes), epochs=6, grain=None)

    # the nodes share the cores of this machine
    speed = 1 / options.nodes
    for _ in range(_SPEED_STEPS):
        speed *= (run(_WIDE_MBIT, speed).epoch_seconds or wide_seconds) / wide_seconds
    return run(_MBIT, speed)
