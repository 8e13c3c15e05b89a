"""``python -m bench scale``: simulate clusters of many nodes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.scale.cluster import GBIT, Cluster, Costs, make_source
from bench.scale.run import Outcome, simulate
from bench.system.console import ProgressLine, align_table, read_size, write_cell
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.epoch_plan import WindowCut

BATCH_ROWS = 65_536
# 40 vCPUs, 160 GiB and 10 Gbit/s, like the nodes of the Ray Datasets measurement
_NODE = Cluster(cpus=40, memory_bytes=160 * 2**30)
_LARGE_STORE = 0.75
_OBJECTS = ("objects/window", "object MB", "coordinator %", "driver ms/task", "sent/minimum", "bottleneck")
_HEADS = ("setting", "GB/s", "trainers idle %", "node GB", *_OBJECTS)
_RIVALS = (
    "Ray Datasets reached 8.18 GB/s and Petastorm 2.16 on 1.5 TB, 16 nodes and 2 windows (measured by "
    "Ray's authors); the rows above are simulated"
)
# Consumption of a rate-limited trainer: an equal share of the 8.18 GB/s that Ray Datasets reached on 16 nodes.
_TRAINER_BYTES = 8.18e9 / 16


@dataclass(frozen=True)
class Setting:
    """A dataset on a cluster; complete epochs are simulated, or a number of windows."""

    name: str
    row_groups: int
    group_bytes: int
    windows: int
    nodes: int
    store_share: float = Cluster.store_share
    replicas: int = 1
    epochs: int = 2
    stop_windows: int | None = None
    packs: bool = True

    def run(self, cluster: Cluster) -> Outcome:
        """Simulate it with the bandwidths, the CPU speed and the trainers of a cluster."""
        source = make_source(self.row_groups, self.group_bytes, packs=self.packs)
        total = int(source.blocks.decoded_bytes.sum())
        job = Job(source, WindowCut(None, -(-total // self.windows)), self.epochs + 1, 7)
        return simulate(
            job,
            replace(cluster, nodes=self.nodes, store_share=self.store_share, replicas=self.replicas),
            Costs(),
            batch_rows=BATCH_ROWS,
            epochs=self.epochs,
            stop_windows=self.stop_windows,
        )


SETTINGS = (
    Setting("1.5 TB, 16 nodes, 2 windows", 12_000, 125_000_000, 2, 16, _LARGE_STORE, epochs=3),
    Setting("1.5 TB, 16 nodes, 10 windows", 12_000, 125_000_000, 10, 16, epochs=3),
    Setting("1.5 TB, 64 nodes, 10 windows", 12_000, 125_000_000, 10, 64),
    Setting(
        "1.5 TB, 64 nodes x 8 tensor-parallel ranks, 10 windows", 12_000, 125_000_000, 10, 64, replicas=8
    ),
    Setting(
        "100 TB, 100 nodes, 50 windows",
        1_000_000,
        100_000_000,
        50,
        100,
        _LARGE_STORE,
        epochs=1,
        stop_windows=6,
    ),
)


def draw_outcomes(outcomes: Sequence[tuple[Setting, str, Outcome]]) -> str:
    """One line per simulated run, and the utilisation of each resource."""
    lines = [_write_outcome(setting, trainers, outcome) for setting, trainers, outcome in outcomes]
    busy = [
        f"{setting.name}, {trainers}: "
        + ", ".join(f"{name} {share:.0%}" for name, share in outcome.busy.items())
        + f"; {outcome.slices} slices"
        for setting, trainers, outcome in outcomes
    ]
    return "\n".join([align_table(_HEADS, lines, {"setting", "bottleneck"}), _RIVALS, "busy:", *busy])


def _write_outcome(setting: Setting, trainers: str, outcome: Outcome) -> tuple[str, ...]:
    must = outcome.min_crossed_share
    return (
        f"{setting.name}, {trainers}",
        f"{outcome.bytes_per_second / 1e9:.1f}",
        f"{100 * outcome.idle_share:.1f}",
        f"{outcome.node_peak_bytes / 1e9:.0f}",
        f"{outcome.objects_per_window:,.0f}",
        f"{outcome.object_bytes / 1e6:.1f}",
        f"{100 * outcome.driver_share:.0f}",
        f"{1e3 * outcome.driver_seconds / outcome.tasks:.2f}",
        write_cell(outcome.crossed_share / must if must else None, "{:.2f}"),
        outcome.bottleneck,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--setting", help="only settings whose name contains this")
    group.add_argument(
        "--plain",
        action="store_true",
        help="values of full width, like floats (default: packed widths as in the dlrm data)",
    )
    group = parser.add_argument_group("cluster")
    group.add_argument("--nic", type=float, default=10.0, help="network bandwidth of a node in Gbit/s")
    group.add_argument("--connections", type=int, default=4, help="connections per task to object storage")
    group.add_argument(
        "--connection", type=read_size, default="87MB", help="bytes per second of a connection"
    )
    group.add_argument(
        "--cpu-speed", type=float, default=1.0, help="speed of a CPU, relative to that of the costs"
    )
    group.add_argument(
        "--trainer",
        type=read_size,
        default=_TRAINER_BYTES,
        help="bytes per second that a trainer consumes (its share of 8.18 GB/s)",
    )


def run(options: argparse.Namespace) -> int:
    settings = [setting for setting in SETTINGS if (options.setting or "") in setting.name]
    print(draw_outcomes(_simulate(settings, options)))
    return 0


def _simulate(settings: Sequence[Setting], options: argparse.Namespace) -> list[tuple[Setting, str, Outcome]]:
    line, outcomes = ProgressLine(), []
    cluster = replace(
        _NODE,
        nic_bytes=options.nic * GBIT,
        connection_bytes=options.connection,
        connections=options.connections,
        cpu_speed=options.cpu_speed,
    )
    for setting in settings:
        for trainers, taken in (
            ("unbounded", None),
            (f"{options.trainer / 1e9:.2f} GB/s each", options.trainer),
        ):
            line.start(f"{setting.name}, trainers {trainers}")
            packed = replace(setting, packs=not options.plain)
            outcome = packed.run(replace(cluster, trainer_bytes=taken))
            line.finish(f"{outcome.bytes_per_second / 1e9:.1f} GB/s")
            outcomes.append((setting, trainers, outcome))
    return outcomes
