"""What a rank does in the tests of a mesh with FSDP2: train, save with DCP, be killed, resume on another mesh."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.distributed.device_mesh import init_device_mesh

from tests.end_to_end.mesh_models import (
    GLOBAL_BATCH,
    RATE,
    Perceptron,
    make_pipe,
    mean_of,
    parallelize,
    report,
    squared_error,
)


def main(
    data: str, folder: str, shape: tuple[int, int], *, resume: bool, save: int, die: int, stop: int
) -> None:
    """Train on a mesh of data and tensor parallel ranks; a step of -1 does not come."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    model = parallelize(Perceptron(), mesh["dp"], mesh["tp"] if shape[1] > 1 else None)
    # its state is sharded like the parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses: list[float] = []
    with make_pipe(data).shard(mesh=mesh) as shard:

        def state() -> dict[str, Any]:
            parameters, optimization = get_state_dict(model, optimizer)
            return {"model": parameters, "optimizer": optimization, "data": shard.state_dict()}

        if resume:
            saved = state()
            load(saved, checkpoint_id=folder)
            set_state_dict(
                model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
            )
            shard.load_state_dict(saved["data"])
        for batch in shard.iter_torch_batches(GLOBAL_BATCH // shape[0], columns=["x", "y"]):
            loss = squared_error(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(mean_of(loss, mesh["dp"].get_group()))
            if len(losses) == save:
                save_checkpoint(state(), checkpoint_id=folder)
                report([losses, shard.state_dict()])
            if len(losses) == die:
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            if len(losses) == stop:
                break
    report([losses, None])
    dist.destroy_process_group()


if __name__ == "__main__":
    data_ranks, tensor_ranks, resumes, *steps = map(int, sys.argv[3:])
    save, die, stop = steps
    shape = data_ranks, tensor_ranks
    main(sys.argv[1], sys.argv[2], shape, resume=bool(resumes), save=save, die=die, stop=stop)
