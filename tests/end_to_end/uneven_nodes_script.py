"""What a rank does in the test of uneven nodes: it reads a mesh of data 2 x tensor 2, and says where it has read."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import windrow
from tests.end_to_end.mesh_models import report
from windrow.pipeline.launch import find_supervisor

BATCH = 20


def make_pipe(path: str, executor: str = "auto") -> windrow.DatasetPipeline:
    """The pipeline that all ranks build."""
    pipe = windrow.read_parquet(path, target_block_bytes=1).window(blocks_per_window=2).repeat(2)
    return pipe.random_shuffle_each_window(seed=7).options(executor=executor, progress=False)


def read(shard: windrow.Shard, columns: list[str]) -> list[list[Any]]:
    """The batches of all epochs: the epoch, and the selected columns."""
    return [
        [epoch.number, *[batch[name].tolist() for name in columns]]
        for epoch in shard.iter_epochs()
        for batch in epoch.iter_batches(BATCH, columns=columns)
    ]


def columns_of(tensor_rank: int) -> list[str]:
    """What a rank selects: the second of each shard less than the first."""
    return [["x", "y"], ["x"]][tensor_rank]


def main(path: str, *, closes: bool) -> None:
    """Read the shard; where ``closes``, ranks of the second node close theirs unread."""
    import ray

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    at = list(mesh.get_coordinate() or ())
    with make_pipe(path).shard(mesh=mesh) as shard:
        unread = closes and os.environ["GROUP_RANK"] == "1"
        found = [] if unread else read(shard, columns_of(at[1]))
        if not closes:
            # no task starts after this
            dist.barrier()
        tasks = None if unread else shard.stats().run.tasks
        node = None if unread else ray.get_runtime_context().get_node_id()
    report([at, found, tasks, node])
    dist.destroy_process_group()


if __name__ == "__main__":
    path, address, action = sys.argv[1:]
    if address == "own":
        # a node of this machine has an address of its own, as nodes of a cluster do
        ip = f"127.1.0.{1 + int(os.environ['GROUP_RANK'])}"
        find_supervisor.own_ip = lambda world_size: ip
        find_supervisor.ip_towards = lambda host, port: ip
    main(path, closes=action == "closes")
