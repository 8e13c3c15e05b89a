import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import windrow
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

data_ranks, tensor_ranks, last_step = map(int, sys.argv[1:])
dist.init_process_group("gloo")  # "nccl" on GPUs
mesh = init_device_mesh("cpu", (data_ranks, tensor_ranks), mesh_dim_names=("dp", "tp"))
model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
if tensor_ranks > 1:
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = windrow.read_parquet("part-*.parquet").window(blocks_per_window=4)
pipe = dataset.repeat(1).random_shuffle_each_window(seed=7)  # the same seed on every rank
with pipe.shard(mesh=mesh) as shard:

    def state():
        parameters, optimization = get_state_dict(model, optimizer)
        return {"model": parameters, "optimizer": optimization, "data": shard.state_dict()}

    if os.path.exists("checkpoint"):
        saved = state()
        dcp.load(saved, checkpoint_id="checkpoint")
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        shard.load_state_dict(saved["data"])
    global_batch, first_row = 256, shard.state_dict()["row"]
    batches = shard.iter_torch_batches(batch_size=global_batch // data_ranks, columns=["x"])
    for step, batch in enumerate(batches, batches.start + 1):
        x = batch["x"].float()[:, None]
        loss = torch.nn.functional.mse_loss(model(x), 2 * x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == last_step:
            break
    dcp.save(state(), checkpoint_id="checkpoint")
if dist.get_rank() == 0:
    print(f"mesh of {data_ranks} x {tensor_ranks}: rows {first_row} to {step * global_batch}", flush=True)
dist.destroy_process_group()
