import os
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
dataset = windrow.read_parquet("part-*.parquet").window(blocks_per_window=2)
pipe = dataset.repeat(3).random_shuffle_each_window(seed=7)  # the same seed on every rank
with pipe.shard(state_dict=saved and saved["data"]) as shard:
    for epoch in shard.iter_epochs():
        batches = epoch.iter_torch_batches(batch_size=256)
        for step, batch in enumerate(batches, batches.start):
            x = batch["x"].float()[:, None]
            loss = torch.nn.functional.mse_loss(model(x), 2 * x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 7 == 6 and rank == 0:  # all shards have the same state at the same step
                content = {name: part.state_dict() for name, part in trained.items()}
                torch.save({**content, "data": shard.state_dict()}, "checkpoint.tmp")
                os.replace("checkpoint.tmp", "checkpoint.pt")
        print(f"rank {rank}, epoch {epoch.number}: steps {batches.start} to {len(batches)}", flush=True)
dist.destroy_process_group()
