"""What a rank does in the test of drawn meshes: it reads each case on meshes in turn, each resumed from the last."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import windrow
from tests.end_to_end.mesh_models import read_cases, report
from windrow import DatasetPipeline, Shard

DIMENSIONS = ("dp", "tp", "cp")


def make_pipe(case: dict[str, Any], executor: str) -> DatasetPipeline:
    """The pipeline of a case."""
    pipe = windrow.read_parquet(case["path"], target_block_bytes=1).window(blocks_per_window=case["window"])
    pipe = pipe.repeat(case["epochs"]).random_shuffle_each_window(seed=case["seed"])
    return pipe.options(executor=executor, progress=False)


def columns_of(leg: dict[str, Any], at: tuple[int, ...]) -> list[str]:
    """What a rank selects: "row" always, "tokens" only on some dimension of tensor-parallel ranks."""
    return ["row", "tokens"] if leg["tokens"] is None or at[1] == leg["tokens"] % leg["shape"][1] else ["row"]


def open_shard(
    pipe: DatasetPipeline, leg: dict[str, Any], state: dict[str, Any] | None
) -> tuple[Shard, Any, Any]:
    """This rank's shard, what it takes of a sequence, and its coordinates."""
    layout = leg["layout"]
    data, tensor, context = leg["shape"]
    if leg["mesh"]:
        mesh = init_device_mesh("cpu", (data, tensor, context), mesh_dim_names=DIMENSIONS)
        shard = pipe.shard(mesh=mesh, sequence_dims=("cp",), state_dict=state)
        at = tuple(mesh.get_coordinate() or ())
        return shard, windrow.SequenceSlice(dim=1, layout=layout, columns=["tokens"]), at
    data_rank, replica = divmod(dist.get_rank(), tensor * context)
    tensor_rank, context_rank = divmod(replica, context)
    shard = pipe.shard(rank=data_rank, world_size=data, replica=(replica, tensor * context), state_dict=state)
    part = windrow.SequenceSlice(dim=1, index=context_rank, count=context, layout=layout, columns=["tokens"])
    return shard, part, (data_rank, tensor_rank, context_rank)


def read(shard: Shard, leg: dict[str, Any], part: Any, at: tuple[int, ...]) -> list[Any]:
    """The batches of a leg: epoch, rows, tokens and their positions."""
    columns, found = columns_of(leg, at), []
    reloads = leg["reloads"] if leg["reloader"] % dist.get_world_size() == dist.get_rank() else None
    sequence = part if "tokens" in columns else None
    while True:
        for epoch in shard.iter_epochs():
            batches = epoch.iter_batches(leg["batch"], drop_last=False, columns=columns, sequence=sequence)
            for batch in batches:
                arrays = [batch[name].tolist() for name in ("row", "tokens", "position_ids") if name in batch]
                found.append([epoch.number, *arrays])
                if len(found) == leg["steps"]:
                    return found
                if len(found) == reloads:
                    break
            if len(found) == reloads:
                break
        else:
            return found
        # as a rank that loses what it has read ahead, and returns
        reloads = None
        state = shard.state_dict()
        batches.close()
        shard.load_state_dict(state)


def main() -> None:
    """Read all cases."""
    read_cases(json.loads(Path(sys.argv[1]).read_text()), _read_case)


def _read_case(case: dict[str, Any]) -> None:
    state = None
    for leg in case["legs"]:
        shard, part, at = open_shard(make_pipe(case, "auto"), leg, state)
        with shard:
            found = read(shard, leg, part, at)
            state = shard.state_dict()
        report([at, found, state])


if __name__ == "__main__":
    main()
