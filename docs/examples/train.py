import os
import time
import torch
import torch.distributed as dist
import windrow

dist.init_process_group("gloo")  # "nccl" on GPUs
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trained = {"model": model, "optimizer": optimizer}
saved = torch.load("checkpoint.pt", weights_only=True) if os.path.exists("checkpoint.pt") else None
for name, part in trained.items() if saved else ():
    part.load_state_dict(saved[name])
dataset = windrow.read_parquet("part-*.parquet").window(blocks_per_window=4)
pipe = dataset.repeat(3).random_shuffle_each_window(seed=7)  # the same seed on every rank
with pipe.shard(state_dict=saved and saved["data"]) as shard:
    for epoch in shard.iter_epochs():
        batches = epoch.iter_torch_batches(batch_size=256)
        print(f"rank {rank}, epoch {epoch.number}: from step {batches.start} of {len(batches)}", flush=True)
        for step, batch in enumerate(batches, batches.start):
            x = batch["x"].float()[:, None]
            loss = torch.nn.functional.mse_loss(model(x), 2 * x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.2)  # so that there is time to kill it
            if rank == 0 and (step % 7 == 6 or step + 1 == len(batches)):  # all ranks have the same state
                content = {name: part.state_dict() for name, part in trained.items()}
                torch.save({**content, "data": shard.state_dict()}, "checkpoint.tmp")
                os.replace("checkpoint.tmp", "checkpoint.pt")
dist.destroy_process_group()
