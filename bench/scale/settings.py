"""The simulated datasets and clusters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.scale.costs import GBIT, Cluster, Costs
from bench.scale.dataset import make_source
from bench.scale.run import Outcome, simulate
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.epoch_plan import WindowCut

__all__ = ["BATCH_ROWS", "SETTINGS", "Setting"]

BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Setting:
    """A dataset on a cluster.

    Attributes
    ----------
    name
        Name in the report.
    row_groups, group_bytes, windows
        The dataset, and the number of windows of an epoch.
    cluster
        The cluster; bandwidths come from the command line.
    epochs, stop_windows
        How much is simulated: complete epochs, or a number of windows.
    packs
        Whether values are packed for the shuffle, as those of ids and codes can be.
    """

    name: str
    row_groups: int
    group_bytes: int
    windows: int
    cluster: Cluster
    epochs: int = 2
    stop_windows: int | None = None
    packs: bool = True

    @property
    def decoded_bytes(self) -> int:
        """Approximate decoded bytes of an epoch."""
        return self.row_groups * self.group_bytes

    def on(self, *, nic_gbit: float, connection_bytes: float, connections: int, cpu_speed: float) -> Setting:
        """The same setting with other bandwidths and CPU speed."""
        cluster = replace(
            self.cluster,
            nic_bytes=nic_gbit * GBIT,
            connection_bytes=connection_bytes,
            connections=connections,
            cpu_speed=cpu_speed,
        )
        return replace(self, cluster=cluster)

    def run(self, costs: Costs, trainer_bytes: float | None = None) -> Outcome:
        """Simulate it; ``trainer_bytes`` limits the bytes per second of each trainer, None: no limit."""
        source = make_source(self.row_groups, self.group_bytes, packs=self.packs)
        total = int(source.blocks.decoded_bytes.sum())
        job = Job(source, WindowCut(None, -(-total // self.windows)), self.epochs + 1, 7)
        cluster = replace(self.cluster, trainer_bytes=trainer_bytes)
        return simulate(
            job,
            cluster,
            costs,
            batch_rows=BATCH_ROWS,
            epochs=self.epochs,
            stop_windows=self.stop_windows,
        )


# 40 vCPUs, 160 GiB and 10 Gbit/s, like the nodes of the Ray Datasets measurement
_NODE = Cluster(cpus=40, memory_bytes=160 * 2**30)
_LARGE_STORE = 0.75

SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "1.5 TB, 16 nodes, 2 windows",
            12_000,
            125_000_000,
            2,
            replace(_NODE, nodes=16, store_share=_LARGE_STORE),
            epochs=3,
        ),
        Setting("1.5 TB, 16 nodes, 10 windows", 12_000, 125_000_000, 10, replace(_NODE, nodes=16), epochs=3),
        Setting(
            "100 TB, 100 nodes, 50 windows",
            1_000_000,
            100_000_000,
            50,
            replace(_NODE, nodes=100, store_share=_LARGE_STORE),
            epochs=1,
            stop_windows=6,
        ),
    )
}
