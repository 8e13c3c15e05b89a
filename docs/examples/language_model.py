import os
import sys
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import windrow
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

WIDTH, HEADS, VOCABULARY, LENGTH, GLOBAL_BATCH = 32, 2, 512, 128, 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        normal = self.first(x)
        heads = [
            of(normal).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for of in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None])
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = (torch.nn.Embedding(size, WIDTH) for size in (VOCABULARY, LENGTH))
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch):
        segments = batch["segment_ids"]
        same = segments[:, :, None] == segments[:, None, :]  # attention stays within documents
        x = self.tokens(batch["input_ids"]) + self.places(batch["position_ids"])
        for block in self.blocks:
            x = block(x, same.tril())
        return functional.cross_entropy(self.head(x).flatten(0, 1), batch["labels"].flatten())


def add_labels(batch):
    """The next token of the same document; torch's cross_entropy leaves out -100."""
    tokens, segments = batch["input_ids"], batch["segment_ids"]
    labels = np.full(tokens.shape, -100, np.int64)
    goes_on = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] >= 0)
    labels[:, :-1][goes_on] = tokens[:, 1:][goes_on]
    return {**batch, "labels": labels}


def read_source(name, seed):
    files = windrow.read_parquet(f"tokens/{name}", columns=["input_ids"])
    return files.window(blocks_per_window=2).repeat().random_shuffle_each_window(seed=seed)


data_ranks, tensor_ranks, last_step = map(int, sys.argv[1:])
dist.init_process_group("gloo")  # "nccl" on GPUs
mesh = init_device_mesh("cpu", (data_ranks, tensor_ranks), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = Model()
if tensor_ranks > 1:
    columns, rows = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel()), RowwiseParallel()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {**columns, "out": rows, "down": rows})
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

sources = {name: read_source(name, seed) for seed, name in enumerate(("code", "prose"))}
shares = windrow.Shares.steps({0: {"code": 0.7, "prose": 0.3}, 20: {"code": 0.4, "prose": 0.6}})
mixture = windrow.mixture(sources, shares, seed=7, unit="tokens", source_column="source")
pipe = mixture.pack(LENGTH, "input_ids", eos=0, boundaries=True).map_batches(add_labels)
balance = windrow.Balance("input_ids", f"{12 * WIDTH} * length + length ** 2")
with pipe.shard(mesh=mesh) as shard:

    def state():
        parameters, optimization = get_state_dict(model, optimizer)
        return {"model": parameters, "optimizer": optimization, "data": shard.state_dict()}

    if os.path.exists("checkpoint"):
        saved = state()
        dcp.load(saved, checkpoint_id="checkpoint")
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        shard.load_state_dict(saved["data"])
    batches = shard.iter_torch_batches(batch_size=GLOBAL_BATCH // data_ranks, balance=balance)
    first, prose = batches.start + 1, 0.0
    for step, batch in enumerate(batches, first):
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        prose += (batch["source"] == 1).float().mean().item() / (last_step - first + 1)
        if step == last_step:
            break
    dcp.save(state(), checkpoint_id="checkpoint")
if dist.get_rank() == 0:
    print(f"mesh of {data_ranks} x {tensor_ranks}: steps {first} to {step}, {prose:.0%} prose", flush=True)
dist.destroy_process_group()
